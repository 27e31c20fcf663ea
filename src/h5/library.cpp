#include "library.hpp"

#include <array>
#include <string_view>
#include <vector>

namespace voltapile::h5 {
namespace {

std::recursive_mutex& process_mutex() {
  // Never destroyed: handles of static lifetime may close after this file's statics are gone.
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

// HDF5 says "unable to open file: name = ..., errno = 2, error message = 'No such file or
// directory', flags = 0, ...": what was attempted, and what the system answered, are enough.
std::string in_short(std::string cause) {
  constexpr std::string_view kMark = "error message = '";
  const size_t begin = cause.find(kMark);
  if (begin == std::string::npos) return cause;
  const size_t from = begin + kMark.size();
  return cause.substr(0, cause.find(':')) + ": " +
         cause.substr(from, cause.find('\'', from) - from);
}

herr_t collect(unsigned, const H5E_error2_t* entry, void* client) {
  auto& causes = *static_cast<std::vector<std::string>*>(client);
  causes.push_back(in_short(entry->desc != nullptr ? entry->desc : ""));
  return 0;
}

std::array<hsize_t, Shape::kMaxDims> extents(const Shape& shape) {
  std::array<hsize_t, Shape::kMaxDims> out{};
  for (int dim = 0; dim < shape.dims(); ++dim) {
    out[static_cast<size_t>(dim)] = static_cast<hsize_t>(shape[dim]);
  }
  return out;
}

}  // namespace

Turn::Turn() : lock_(process_mutex()) {
  // A file whose close failed would crash HDF5's own clean-up at exit.
  static const bool once = H5dont_atexit() >= 0;
  static_cast<void>(once);
  // Each time: in thread-safe builds every thread has an error stack of its own.
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

void throw_stack(ExitCode code, const std::string& where, const char* what) {
  std::vector<std::string> causes;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &causes);
  H5Eclear2(H5E_DEFAULT);
  // Upward: the first entry is where the fault arose; the others say "cannot" on the way back to
  // us.
  std::string text = where + ": " + what;
  if (!causes.empty()) text += ": " + causes.front();
  throw Error(code, text);
}

hid_t memory_type(DType type) {
  switch (type) {
    case DType::f32: return H5T_NATIVE_FLOAT;
    case DType::f64: return H5T_NATIVE_DOUBLE;
    case DType::u8: return H5T_NATIVE_UINT8;
    case DType::i32: return H5T_NATIVE_INT32;
    case DType::i64: return H5T_NATIVE_INT64;
    case DType::f16:
    case DType::bf16: break;
  }
  VP_CHECK(false, "HDF5 files hold f32, f64, u8, i32 and i64, not {}", name_of(type));
  return -1;
}

hid_t file_type(DType type) {
  switch (type) {
    case DType::f32: return H5T_IEEE_F32LE;
    case DType::f64: return H5T_IEEE_F64LE;
    case DType::u8: return H5T_STD_U8LE;
    case DType::i32: return H5T_STD_I32LE;
    case DType::i64: return H5T_STD_I64LE;
    case DType::f16:
    case DType::bf16: break;
  }
  VP_CHECK(false, "HDF5 files hold f32, f64, u8, i32 and i64, not {}", name_of(type));
  return -1;
}

Handle make_space(const Shape& shape, ExitCode code, const std::string& where) {
  const auto dims = extents(shape);
  return Handle(check(H5Screate_simple(shape.dims(), dims.data(), nullptr), code, where,
                      "cannot describe the shape"));
}

void select_box(hid_t space, const Box& box, ExitCode code, const std::string& where) {
  const auto start = extents(box.start);
  const auto count = extents(box.count);
  // One block per dim: HDF5 treats a single block faster than many blocks of one.
  const std::array<hsize_t, Shape::kMaxDims> one = {1, 1, 1, 1, 1, 1};
  check(H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, one.data(), count.data()),
        code, where, "cannot select a block");
}

}  // namespace voltapile::h5
