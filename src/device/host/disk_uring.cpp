#include <cerrno>
#include <cstring>

#include <liburing.h>
#include <time.h>

#include "voltapile/base/error.hpp"
#include "voltapile/device/host/disk.hpp"

#include "disk_queue.hpp"

namespace voltapile::host {
namespace {

class UringQueue final : public DiskQueue {
 public:
  explicit UringQueue(int file) : file_(file) {}
  ~UringQueue() override {
    if (ready_) io_uring_queue_exit(&ring_);
  }

  // Empty, or what the system lacks.
  std::string start() {
    if (const int error = io_uring_queue_init(DiskFile::kQueueDepth, &ring_, 0); error < 0)
      return std::strerror(-error);
    ready_ = true;
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool able = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                      io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    return able ? "" : "needs Linux 5.6";
  }

  void submit(size_t slot, const Request& request) override {
    if (refused_ != 0) refuse();
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    VP_CHECK(entry, "more than {} requests are in flight", DiskFile::kQueueDepth);
    const auto bytes = static_cast<unsigned>(request.bytes);
    if (request.kind == Transfer::read)
      io_uring_prep_read(entry, file_, request.memory, bytes, request.offset);
    else io_uring_prep_write(entry, file_, request.memory, bytes, request.offset);
    io_uring_sqe_set_data64(entry, slot);
    for (;;) {
      const int submitted = io_uring_submit(&ring_);
      if (submitted == 1) return;
      // The kernel is short of memory for the moment, or a signal came.
      if (submitted == 0 || submitted == -EAGAIN || submitted == -EBUSY || submitted == -EINTR) {
        const timespec pause{0, 100000};
        nanosleep(&pause, nullptr);
        continue;
      }
      // The entry stays in the ring, so nothing may be submitted after it.
      refused_ = -submitted;
      refuse();
    }
  }

  Done wait() override {
    io_uring_cqe* entry = nullptr;
    int error = 0;
    do error = io_uring_wait_cqe(&ring_, &entry);
    while (error == -EINTR || error == -EAGAIN);
    if (error < 0)
      throw Error(ExitCode::failure,
                  format("io_uring gives no results any more: {}", std::strerror(-error)));
    const Done done = {static_cast<size_t>(io_uring_cqe_get_data64(entry)), entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return done;
  }

 private:
  [[noreturn]] void refuse() const {
    throw Error(ExitCode::failure,
                format("io_uring takes no more requests: {}", std::strerror(refused_)));
  }

  int file_;
  int refused_ = 0;
  bool ready_ = false;
  io_uring ring_{};
};

}  // namespace

std::unique_ptr<DiskQueue> make_uring_queue(int file, std::string& why_not) {
  auto queue = std::make_unique<UringQueue>(file);
  why_not = queue->start();
  if (!why_not.empty()) return nullptr;
  return queue;
}

}  // namespace voltapile::host
