// Files, and the tree inside them.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "library.hpp"

namespace voltapile::h5 {
namespace {

Handle access_properties(const std::string& where, ExitCode code) {
  Handle list(check(H5Pcreate(H5P_FILE_ACCESS), code, where, "cannot make access properties"));
  // 1.8's file format checksums its metadata and holds attributes above 64 KiB (a long deck).
  check(H5Pset_libver_bounds(list.id(), H5F_LIBVER_V18, H5F_LIBVER_V110), code, where,
        "cannot choose the file format");
#if H5_VERSION_GE(1, 12, 1) || (H5_VERS_MINOR == 10 && H5_VERS_RELEASE >= 7)
  // Cluster file systems mounted without locks are common; the run folder has a lock of its own.
  check(H5Pset_file_locking(list.id(), true, true), code, where, "cannot choose file locking");
#endif
  return list;
}

}  // namespace

File File::open(const std::filesystem::path& path) {
  Turn turn;
  const std::string where = path.string();
  const auto code = ExitCode::bad_data;
  const Handle access = access_properties(where, code);
  Handle file(check(H5Fopen(where.c_str(), H5F_ACC_RDONLY, access.id()), code, where,
                    "cannot open this HDF5 file"));
  return File(std::move(file), where, code);
}

File File::create(const std::filesystem::path& path) {
  Turn turn;
  const std::string where = path.string();
  const auto code = ExitCode::failure;
  const Handle access = access_properties(where, code);
  Handle file(check(H5Fcreate(where.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()), code, where,
                    "cannot create this HDF5 file"));
  return File(std::move(file), where, code);
}

// The bytes of a file in memory, which must outlive HDF5's closing of it: the last flush counts.
// (H5Fget_file_image looks simpler, but the superblock that 1.10.8 returns has a wrong checksum in
// every file format but the oldest.)
struct File::Image {
  Image() = default;
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;
  ~Image() { std::free(data); }

  static void* grow(void*, size_t bytes, H5FD_file_image_op_t, void* self) {
    Image& image = *static_cast<Image*>(self);
    void* grown = std::realloc(image.data, bytes);
    if (grown == nullptr) return nullptr;
    if (bytes > image.bytes) {
      std::memset(static_cast<std::byte*>(grown) + image.bytes, 0, bytes - image.bytes);
    }
    image.data = grown;
    image.bytes = bytes;
    return grown;
  }
  static herr_t keep(void*, H5FD_file_image_op_t, void*) { return 0; }

  void* data = nullptr;
  size_t bytes = 0;
};

File File::create_in_memory(const std::filesystem::path& name, size_t user_block) {
  Turn turn;
  const std::string where = name.string();
  const auto code = ExitCode::failure;
  const auto image = std::make_shared<Image>();
  const Handle access = access_properties(where, code);
  constexpr size_t kGrowth = size_t{1} << 20;
  check(H5Pset_fapl_core(access.id(), kGrowth, false), code, where, "cannot build in memory");
  // Closes with all that is open inside: nothing may be left that writes to the image later.
  check(H5Pset_fclose_degree(access.id(), H5F_CLOSE_STRONG), code, where,
        "cannot choose how to close");
  H5FD_file_image_callbacks_t callbacks{};
  callbacks.image_realloc = Image::grow;
  callbacks.image_free = Image::keep;
  callbacks.udata_copy = [](void* self) { return self; };
  callbacks.udata_free = [](void*) -> herr_t { return 0; };
  callbacks.udata = image.get();
  check(H5Pset_file_image_callbacks(access.id(), &callbacks), code, where,
        "cannot keep the memory");
  const Handle creation(
      check(H5Pcreate(H5P_FILE_CREATE), code, where, "cannot make creation properties"));
  check(H5Pset_userblock(creation.id(), user_block), code, where, "cannot keep a user block");
  // HDF5 tells open files in memory apart by name.
  static std::atomic<uint64_t> count = 0;
  const std::string unique = format("{}#{}", where, ++count);
  Handle handle(check(H5Fcreate(unique.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()), code,
                      where, "cannot create an HDF5 file in memory"));
  File file(std::move(handle), where, code);
  file.image_ = image;
  return file;
}

// HDF5 writes to the image when it closes the file, so the file goes first.
File::~File() { handle_ = Handle(); }

std::vector<std::byte> File::close_image() {
  VP_CHECK(image_ != nullptr, "{}: this file is not in memory", where_);
  Turn turn;
  check(H5Fflush(handle_.id(), H5F_SCOPE_GLOBAL), code_, where_, "cannot flush");
  // Closing rewrites metadata in place; it does not lengthen the file.
  hsize_t bytes = 0;
  check(H5Fget_filesize(handle_.id(), &bytes), code_, where_, "cannot size the file");
  close();
  VP_CHECK(bytes <= image_->bytes, "{}: {} bytes in a buffer of {}", where_, bytes, image_->bytes);
  const auto* data = static_cast<const std::byte*>(image_->data);
  return {data, data + bytes};
}

void File::close() {
  Turn turn;
  // With anything open inside, HDF5 would put the closing off and say nothing. (It can close the
  // file all the same, but then no virtual dataset may use that file meanwhile: it reads as NaN.)
  const ssize_t open = H5Fget_obj_count(handle_.id(), H5F_OBJ_ALL | H5F_OBJ_LOCAL);
  VP_CHECK(open == 1 || image_ != nullptr, "{}: closed with {} handles open", where_, open - 1);
  check(H5Fclose(handle_.release()), code_, where_, "cannot close");
}

std::string Group::child(const std::string& name) const {
  const bool inside = where_.find(":/") != std::string::npos;
  return where_ + (inside ? "/" : ":/") + name;
}

Group Group::create_group(const std::string& name) {
  Turn turn;
  Handle group(check(H5Gcreate2(handle_.id(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                     code_, child(name), "cannot create this group"));
  return Group(std::move(group), child(name), code_);
}

Group Group::open_group(const std::string& name) const {
  Turn turn;
  Handle group(check(H5Gopen2(handle_.id(), name.c_str(), H5P_DEFAULT), code_, child(name),
                     "cannot open this group"));
  return Group(std::move(group), child(name), code_);
}

bool Group::exists(const std::string& name) const {
  Turn turn;
  return check(H5Lexists(handle_.id(), name.c_str(), H5P_DEFAULT), code_, child(name),
               "cannot look this up") > 0;
}

std::vector<std::string> Group::names() const {
  Turn turn;
  std::vector<std::string> found;
  const auto visit = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  check(H5Literate(handle_.id(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, visit, &found), code_,
        where_, "cannot list this group");
  std::sort(found.begin(), found.end());
  return found;
}

void Group::link(const std::string& name, const std::string& target) {
  Turn turn;
  check(H5Lcreate_hard(handle_.id(), target.c_str(), handle_.id(), name.c_str(), H5P_DEFAULT,
                       H5P_DEFAULT),
        code_, child(name), ("cannot link this to " + target).c_str());
}

}  // namespace voltapile::h5
