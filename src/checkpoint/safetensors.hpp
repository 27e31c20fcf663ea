// The safetensors format (github.com/huggingface/safetensors): the header's length in 8 bytes,
// little-endian; a JSON object of {name: {dtype, shape, data_offsets}} and __metadata__ with texts;
// then the data, without holes. Nothing in a file is trusted: what breaks a rule is
// Error(bad_data), in printable ASCII.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "voltapile/base/tensor_view.hpp"

namespace voltapile::safetensors {

constexpr int64_t kMostHeaderBytes = 100'000'000;  // the format's own limit

struct Tensor {
  std::string name, dtype;     // dtype as the file has it: "F32"
  Shape shape;                 // row-major
  int64_t begin = 0, end = 0;  // bytes of the data
  bool operator==(const Tensor&) const = default;
};
struct Layout {
  std::vector<Tensor> tensors;  // in the order of the data
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;  // in the file
  bool operator==(const Layout&) const = default;
};

// Every tensor lies inside the data_bytes and has the size of its shape and type; together they
// fill them without a hole or an overlap; no name comes twice. `where` is for messages.
Layout parse_header(std::string_view json, int64_t data_bytes, const std::string& where);

// A file's first bytes: length and JSON, padded so that the data begins at a multiple of 8. The
// tensors must follow each other.
std::string header_bytes(const Layout& layout);

// A name from a file for a message: quoted unless it is plain, printable, shortened.
std::string show_name(const std::string& name);

// F64, F32, F16 or BF16: what weights may be.
bool is_floating(std::string_view dtype);
// Such a type to f32; bytes.size() decides how many.
void decode(std::string_view dtype, std::span<const std::byte> bytes, float* values);
std::string_view dtype_name(DType type);  // f32, f16, bf16

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path);
  const Layout& layout() const { return layout_; }
  const std::filesystem::path& path() const { return path_; }
  // All elements of a tensor of floating type. Error(bad_data) when one is not finite.
  void read(const Tensor& tensor, float* values);

 private:
  std::filesystem::path path_;
  std::ifstream file_;
  Layout layout_;
};

}  // namespace voltapile::safetensors
