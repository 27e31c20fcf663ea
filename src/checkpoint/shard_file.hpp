// Private to checkpoint: fills a file that HDF5 has laid out.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "voltapile/base/thread_pool.hpp"

#include "descriptor.hpp"

namespace voltapile {

// Whole pages of writes of kLong bytes or more go past the page cache, kBlock bytes at most at a
// time; the rest, HDF5's own structure among it, through it. No page goes both ways, so they do not
// meet. Error(failure) names the file and the system's cause.
class ShardFile {
 public:
  static constexpr size_t kPage = 4096, kBlock = size_t{8} << 20;
  // From this length on a dataset should begin at a page.
  static constexpr size_t kLong = size_t{16} * kPage;

  // Reserves the room that the file's length asks for, so that a disk that is too small says so
  // before anything else is done.
  explicit ShardFile(const std::filesystem::path& path);
  ~ShardFile();
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  int64_t bytes() const { return bytes_; }
  // Why no write goes past the page cache, in the system's words; empty where they do.
  const std::string& refusal() const { return refusal_; }

  void read(int64_t at, std::span<std::byte> into) const;
  // Copied once where `from` does not begin at a page.
  void write(int64_t at, std::span<const std::byte> from);
  // All bytes are on the disk when this returns.
  void close();

 private:
  bool write_past_cache(int64_t at, std::span<const std::byte> pages);
  bool write_in_two(int64_t at, std::span<const std::byte> block);
  void write_through_cache(int64_t at, std::span<const std::byte> from);

  std::filesystem::path path_;
  Descriptor file_;
  int direct_ = -1;  // another descriptor of the file
  int64_t bytes_ = 0;
  std::string refusal_;
  ThreadPool both_{2};
  std::unique_ptr<std::byte, decltype(&std::free)> copies_{nullptr, &std::free};
};

}  // namespace voltapile
