// Private to checkpoint: fills a file that HDF5 has laid out.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "descriptor.hpp"
#include "task_queue.hpp"

namespace voltapile {

// Whole pages of writes of kLong bytes or more go past the page cache, kAtOnce requests in flight;
// the rest, HDF5's own structure among it, through it. No page goes both ways, so they do not meet.
// Error(failure) names the file and the system's cause.
class ShardFile {
 public:
  static constexpr size_t kPage = 4096;
  // From this length on a dataset should begin at a page.
  static constexpr size_t kLong = size_t{16} * kPage;
  // What keeps a disk busy.
  static constexpr int kAtOnce = 4;
  static constexpr size_t kBlock = size_t{8} << 20;

  // Reserves the room that the file's length asks for, so that a disk that is too small says so
  // before anything else is done.
  explicit ShardFile(const std::filesystem::path& path);

  int64_t bytes() const { return bytes_; }
  // What was there before write().
  void read(int64_t at, std::span<std::byte> into) const;
  // Begins to write; `from` must stay as it is until wait() for the answer has returned. Copied
  // once where it does not begin at a page, by whoever writes it, or is not long.
  int64_t write(int64_t at, std::span<const std::byte> from);
  // Until that write() and those before it need their memory no longer.
  void wait(int64_t written) { writers_.wait(written); }
  // Whether wait() would not.
  bool ended(int64_t written) { return writers_.ended(written); }
  // All bytes are on the disk when this returns.
  void close();
  // After close(): why no write went past the page cache, in the system's words; empty where they
  // did.
  const std::string& refusal() const { return refusal_; }

 private:
  struct Small {
    int64_t at = 0;
    size_t bytes = 0;
  };
  void write_pages(int64_t at, std::span<const std::byte> pages);
  int write_past_cache(int64_t at, std::span<const std::byte> pages) const;
  void write_through_cache(int64_t at, std::span<const std::byte> from) const;
  void keep_small(int64_t at, std::span<const std::byte> from);
  void write_small();

  std::filesystem::path path_;
  Descriptor file_, direct_;  // two of one file
  int64_t bytes_ = 0;
  std::mutex refusing_;
  std::atomic<bool> refuses_ = false;
  std::string refusal_;
  std::vector<Small> small_;
  std::vector<std::byte> small_bytes_;  // of all of small_, one after the other
  int64_t newest_ = 0;
  TaskQueue writers_{kAtOnce};  // the last: they use the others
};

}  // namespace voltapile
