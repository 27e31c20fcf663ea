#include <array>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include <unistd.h>

#include "voltapile/base/error.hpp"
#include "voltapile/device/host/disk.hpp"

#include "disk_queue.hpp"

namespace voltapile::host {
namespace {

// A ring of what is in flight, as nothing may be allocated in a step.
template <class T>
class Fifo {
 public:
  bool empty() const { return count_ == 0; }
  void push(T item) {
    VP_CHECK(count_ < items_.size(), "more than {} requests are in flight", items_.size());
    items_[(first_ + count_++) % items_.size()] = item;
  }
  T pop() {
    --count_;
    return items_[std::exchange(first_, (first_ + 1) % items_.size())];
  }

 private:
  std::array<T, DiskFile::kQueueDepth> items_{};
  size_t first_ = 0, count_ = 0;
};

class ThreadQueue final : public DiskQueue {
 public:
  explicit ThreadQueue(int file) : file_(file) {
    for (auto& thread : threads_) thread = std::thread([this] { work(); });
  }
  ~ThreadQueue() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    asked_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void submit(size_t slot, const Request& request) override {
    {
      std::lock_guard lock(mutex_);
      requests_.push({slot, request});
    }
    asked_.notify_one();
  }

  Done wait() override {
    std::unique_lock lock(mutex_);
    answered_.wait(lock, [&] { return !done_.empty(); });
    return done_.pop();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      asked_.wait(lock, [&] { return stopping_ || !requests_.empty(); });
      if (requests_.empty()) return;
      const auto [slot, request] = requests_.pop();
      lock.unlock();
      const int64_t result = transfer(request);
      lock.lock();
      done_.push({slot, result});
      answered_.notify_one();
    }
  }

  int64_t transfer(const Request& request) const {
    const auto offset = static_cast<off_t>(request.offset);
    ssize_t result = 0;
    do {
      result = request.kind == Transfer::read
                   ? pread(file_, request.memory, request.bytes, offset)
                   : pwrite(file_, request.memory, request.bytes, offset);
    } while (result < 0 && errno == EINTR);
    return result < 0 ? -errno : result;
  }

  struct Asked {
    size_t slot;
    Request request;
  };
  int file_;
  std::mutex mutex_;
  std::condition_variable asked_, answered_;
  Fifo<Asked> requests_;
  Fifo<Done> done_;
  bool stopping_ = false;
  std::array<std::thread, kDiskThreads> threads_;
};

}  // namespace

std::unique_ptr<DiskQueue> make_thread_queue(int file) {
  return std::make_unique<ThreadQueue>(file);
}

}  // namespace voltapile::host
