// The NVMe home: one file of a rank, read and written past the page cache, several pieces at a
// time.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace voltapile::host {

// Scratch space: it goes with the object, or with the process, however that ends. Several threads
// may call at a time; one read and one write are then under way, others wait their turn. What a
// write covers must not overlap with another call's bytes at the same time.
//
// Fastest where offset, size and memory address are multiples of 4096: other memory is copied once,
// other borders cost a block's read (and write) each. Bytes that nobody wrote read as zeros. Holds
// 2 * kQueueDepth * kPieceBytes of host memory once copies were needed.
class DiskFile {
 public:
  static constexpr size_t kPieceBytes = size_t{2} << 20;  // of one request
  static constexpr size_t kQueueDepth = 8;                // requests in flight each way

  // Creates `folder` where it is missing, and folder/name of `bytes`, all of it allocated and
  // unlinked at once. Error(bad_input) names the folder and memory.nvme_dir where that is not
  // possible; Error(failure) tells the bytes needed and free where the disk is too small.
  DiskFile(const std::filesystem::path& folder, const std::string& name, size_t bytes);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  // Block the caller until all bytes are there (write: with the disk, whose own cache may hold
  // them). Error(failure) names file, offset, bytes and the system's reason; nothing touches the
  // memory any more by then.
  void read(size_t offset, std::span<std::byte> into);
  void write(size_t offset, std::span<const std::byte> from);

  // How: "io_uring, direct"; or what else and why, as "4 threads (io_uring: Operation not
  // permitted), buffered (the file system refuses direct I/O)".
  std::string describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace voltapile::host
