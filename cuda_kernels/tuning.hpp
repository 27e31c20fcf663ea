// The algorithms that were chosen for matrix products, kept in a text file so that a resumed run
// makes the same choices and gives the same bits. No CUDA in here.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace voltapile::cuda {

// What the library calls an algorithm: 64 bytes that only it understands.
using Algorithm = std::array<uint64_t, 8>;

// Three lines of heading (what it is, the GPU, the library's version), then a line a product:
//   128 hexadecimal digits, a space, the product's name
// and last a line with a checksum of all before it. One process writes a file.
class TuningFile {
 public:
  // Reads the file if there is one. One that is damaged, or was written for another GPU or version
  // of the library, is ignored with a warning, and replaced at the next keep(). An empty path keeps
  // choices in memory only.
  TuningFile(std::filesystem::path path, std::string gpu, uint64_t library_version);

  // Product names are one line of text.
  std::optional<Algorithm> find(const std::string& product) const;
  // Writes the whole file aside and renames it; Error(failure) where that cannot be done.
  void keep(const std::string& product, const Algorithm& algorithm);

 private:
  std::string heading() const;
  void read();
  void write() const;

  std::filesystem::path path_;
  std::string gpu_;
  uint64_t library_version_ = 0;
  std::map<std::string, Algorithm> choices_;
};

}  // namespace voltapile::cuda
