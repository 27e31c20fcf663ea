#include "safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <tuple>

#include <nlohmann/json.hpp>

namespace voltapile::safetensors {
namespace {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "data is taken as it lies in the file");

constexpr const char* kMetadata = "__metadata__";

struct TypeSize {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<TypeSize, 15> kTypes = {{{"F64", 8},
                                              {"F32", 4},
                                              {"F16", 2},
                                              {"BF16", 2},
                                              {"I64", 8},
                                              {"I32", 4},
                                              {"I16", 2},
                                              {"I8", 1},
                                              {"U64", 8},
                                              {"U32", 4},
                                              {"U16", 2},
                                              {"U8", 1},
                                              {"BOOL", 1},
                                              {"F8_E4M3", 1},
                                              {"F8_E5M2", 1}}};

int64_t type_bytes(std::string_view name) {
  const auto type = std::find_if(kTypes.begin(), kTypes.end(),
                                 [&](const TypeSize& known) { return known.name == name; });
  return type == kTypes.end() ? 0 : type->bytes;
}

class HeaderParser {
 public:
  HeaderParser(std::string_view text, int64_t data_bytes, const std::string& where)
      : text_(text), data_bytes_(data_bytes), where_(where) {}

  Layout parse() {
    if (text_.empty() || text_.front() != '{') refuse("its header does not begin with {");
    const json header = parse_json();
    Layout layout;
    for (const auto& [name, value] : header.items()) {
      if (name == kMetadata) layout.metadata = metadata_of(value);
      else layout.tensors.push_back(tensor_of(name, value));
    }
    std::sort(layout.tensors.begin(), layout.tensors.end(), [](const Tensor& a, const Tensor& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    check_filled(layout.tensors);
    return layout;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ExitCode::bad_data, format("{}: no good safetensors file: {}", where_, why));
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const {
    refuse(format("tensor {}: {}", show_name(name), why));
  }

  // The library keeps the last of two values under one name, and any depth.
  json parse_json() const {
    constexpr int kMostDepth = 3;
    std::array<std::set<std::string>, kMostDepth> names;
    const auto watch = [&](int depth, json::parse_event_t event, json& value) {
      if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
        if (depth >= kMostDepth) refuse("its header is nested too deeply");
        names[static_cast<size_t>(depth)].clear();
      }
      if (event == json::parse_event_t::key) {
        const std::string name = value.get<std::string>();
        if (!names[static_cast<size_t>(depth - 1)].insert(name).second)
          refuse(format("its header has two values for {}", show_name(name)));
      }
      return true;
    };
    try {
      json header = json::parse(text_, watch);
      if (!header.is_object()) refuse("its header is no JSON object");
      return header;
    } catch (const json::exception& error) {
      const auto* place = dynamic_cast<const json::parse_error*>(&error);
      refuse(format("its header is no JSON{}",
                    place != nullptr ? format(" (byte {} of it)", place->byte) : ""));
    }
  }

  std::map<std::string, std::string> metadata_of(const json& value) const {
    if (!value.is_object()) refuse("__metadata__ is no object");
    std::map<std::string, std::string> metadata;
    for (const auto& [name, text] : value.items()) {
      if (!text.is_string()) refuse(format("__metadata__ {}: not a text", show_name(name)));
      metadata[name] = text.get<std::string>();
    }
    return metadata;
  }

  // A count or an offset; nothing for what is negative, too large or no integer.
  static std::optional<int64_t> natural(const json& value) {
    if (!value.is_number_unsigned()) return std::nullopt;
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }

  Tensor tensor_of(const std::string& name, const json& value) const {
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
        !value.contains("shape") || !value.contains("data_offsets"))
      refuse(name, "it has not just dtype, shape and data_offsets");
    Tensor tensor;
    tensor.name = name;
    const json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
    if (!dtype.is_string()) refuse(name, "its dtype is no text");
    tensor.dtype = dtype.get<std::string>();
    int64_t bytes = type_bytes(tensor.dtype);
    if (bytes == 0) refuse(name, format("unknown dtype {}", show_name(tensor.dtype)));
    if (!shape.is_array() || shape.size() > Shape::kMaxDims)
      refuse(name, format("its shape is no list of at most {} extents", Shape::kMaxDims));
    for (const json& item : shape) {
      const auto extent = natural(item);
      if (!extent) refuse(name, "an extent of its shape is no natural number");
      // Before the product with a zero extent would hide it.
      if (*extent > data_bytes_ || __builtin_mul_overflow(bytes, *extent, &bytes))
        refuse(name, format("its shape is larger than the {} bytes of data", data_bytes_));
      tensor.shape.append(*extent);
    }
    if (!offsets.is_array() || offsets.size() != 2) refuse(name, "its data_offsets are no pair");
    const auto begin = natural(offsets[0]), end = natural(offsets[1]);
    if (!begin || !end || *begin > *end || *end > data_bytes_)
      refuse(name, format("its data_offsets lie outside the {} bytes of data", data_bytes_));
    if (*end - *begin != bytes)
      refuse(name, format("{} of type {} takes {} bytes, its data_offsets hold {}",
                          tensor.shape.text(), tensor.dtype, bytes, *end - *begin));
    tensor.begin = *begin;
    tensor.end = *end;
    return tensor;
  }

  void check_filled(const std::vector<Tensor>& tensors) const {
    int64_t filled = 0;
    for (const Tensor& tensor : tensors) {
      if (tensor.begin < filled) refuse(tensor.name, "its data overlaps that of another tensor");
      if (tensor.begin > filled)
        refuse(tensor.name,
               format("{} bytes before its data belong to no tensor", tensor.begin - filled));
      filled = tensor.end;
    }
    if (filled != data_bytes_)
      refuse(format("its last {} bytes belong to no tensor", data_bytes_ - filled));
  }

  std::string_view text_;
  int64_t data_bytes_;
  const std::string& where_;
};

template <class Stored>
void decode_as(std::span<const std::byte> bytes, float* values) {
  for (size_t i = 0; i < bytes.size() / sizeof(Stored); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = static_cast<float>(stored);
  }
}

}  // namespace

Layout parse_header(std::string_view json, int64_t data_bytes, const std::string& where) {
  return HeaderParser(json, data_bytes, where).parse();
}

std::string header_bytes(const Layout& layout) {
  // Of one order and one spelling: the same weights give the same file.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!layout.metadata.empty()) header[kMetadata] = layout.metadata;
  for (const Tensor& tensor : layout.tensors) {
    auto shape = nlohmann::ordered_json::array();
    for (int dim = 0; dim < tensor.shape.dims(); ++dim) shape.push_back(tensor.shape[dim]);
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

std::string show_name(const std::string& name) {
  constexpr size_t kLongest = 120;
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (!name.empty() && name.size() <= kLongest &&
      name.find_first_not_of(kPlain) == std::string::npos)
    return name;
  const auto replace = json::error_handler_t::replace;
  const std::string shown = json(name.substr(0, kLongest)).dump(-1, ' ', true, replace);
  return name.size() > kLongest ? shown + "..." : shown;
}

bool is_floating(std::string_view dtype) {
  return dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

void decode(std::string_view dtype, std::span<const std::byte> bytes, float* values) {
  if (dtype == "F64") return decode_as<double>(bytes, values);
  if (dtype == "F32") return decode_as<float>(bytes, values);
  if (dtype == "F16") return decode_as<Half>(bytes, values);
  VP_CHECK(dtype == "BF16", "weights of type {}", dtype);
  decode_as<BFloat16>(bytes, values);
}

std::string_view dtype_name(DType type) {
  switch (type) {
    case DType::f32: return "F32";
    case DType::f16: return "F16";
    case DType::bf16: return "BF16";
    default: VP_CHECK(false, "weights of type {}", name_of(type));
  }
  return "";
}

Reader::Reader(const std::filesystem::path& path) : path_(path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ExitCode::bad_data, format("{}: {}", path.string(), why));
  };
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) refuse("there is no such file");
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  file_.open(path, std::ios::binary);
  if (error || !file_) refuse("it cannot be opened for reading");
  uint64_t length = 0;
  constexpr int64_t kLengthBytes = sizeof length;
  file_.read(reinterpret_cast<char*>(&length), kLengthBytes);
  if (!file_) refuse("no good safetensors file: it is shorter than 8 bytes");
  if (length > static_cast<uint64_t>(kMostHeaderBytes) ||
      static_cast<int64_t>(length) > file_bytes - kLengthBytes)
    refuse(format("no good safetensors file: a header of {} bytes in a file of {}", length,
                  file_bytes));
  std::string header(length, '\0');
  file_.read(header.data(), static_cast<std::streamsize>(length));
  if (!file_) refuse("its header cannot be read");
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(length);
  layout_ = parse_header(header, file_bytes - data_begin, path.string());
  layout_.data_begin = data_begin;
}

void Reader::read(const Tensor& tensor, float* values) {
  constexpr int64_t kSlab = int64_t{8} << 20;  // a multiple of every type's size
  const int64_t size = type_bytes(tensor.dtype);
  std::vector<std::byte> slab(static_cast<size_t>(std::min(kSlab, tensor.end - tensor.begin)));
  file_.seekg(layout_.data_begin + tensor.begin);
  for (int64_t at = tensor.begin; at < tensor.end; at += kSlab) {
    const int64_t bytes = std::min(kSlab, tensor.end - at), count = bytes / size;
    file_.read(reinterpret_cast<char*>(slab.data()), bytes);
    if (!file_) {
      throw Error(ExitCode::bad_data, format("{}: the data of {} cannot be read", path_.string(),
                                             show_name(tensor.name)));
    }
    decode(tensor.dtype, std::span(slab).first(static_cast<size_t>(bytes)), values);
    if (!std::all_of(values, values + count, [](float x) { return std::isfinite(x); })) {
      throw Error(ExitCode::bad_data, format("{}: tensor {} has values that are not finite numbers",
                                             path_.string(), show_name(tensor.name)));
    }
    values += count;
  }
}

}  // namespace voltapile::safetensors
