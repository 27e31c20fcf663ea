// Requests to one open file, several in flight. Used by one thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace voltapile::host {

enum class Transfer { read, write };

struct Request {
  Transfer kind;
  size_t offset;  // in the file
  std::byte* memory;
  size_t bytes;
};

class DiskQueue {
 public:
  virtual ~DiskQueue() = default;  // nothing may be in flight
  // At most DiskFile::kQueueDepth in flight; `slot` comes back with the result.
  virtual void submit(size_t slot, const Request& request) = 0;
  struct Done {
    size_t slot;
    int64_t result;  // bytes, which may be fewer than asked for, or -errno
  };
  virtual Done wait() = 0;
};

std::unique_ptr<DiskQueue> make_thread_queue(int file);
constexpr int kDiskThreads = 4;
// Null, and why, where the system has no io_uring or the build left it out (disk_no_uring.cpp).
std::unique_ptr<DiskQueue> make_uring_queue(int file, std::string& why_not);

}  // namespace voltapile::host
