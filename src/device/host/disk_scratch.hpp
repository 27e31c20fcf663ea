// An unlinked file of a fixed size, open for direct I/O where the file system has it.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>

namespace voltapile::host {

class ScratchFile {
 public:
  // Throws as DiskFile's constructor.
  ScratchFile(const std::filesystem::path& folder, const std::string& name, size_t bytes);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  int descriptor() const { return descriptor_; }
  const std::filesystem::path& path() const { return path_; }
  bool direct() const { return direct_; }
  // What offsets and sizes of a request, and its address, must be multiples of. The file's own size
  // is one.
  size_t block() const { return block_; }
  size_t memory_block() const { return memory_block_; }

 private:
  void create(const std::filesystem::path& folder, size_t bytes);
  void allocate(const std::filesystem::path& folder, size_t bytes);
  bool make_direct();

  std::filesystem::path path_;
  int descriptor_ = -1;
  bool direct_ = false;
  size_t block_ = 1, memory_block_ = 1;
};

}  // namespace voltapile::host
