// A lane of its own for communicator tests: one worker, in order, keeping the first exception.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "voltapile/device/device.hpp"

namespace voltapile::testing {

class TestLane final : public Stream {
 public:
  TestLane() : worker_([this] { work(); }) {}
  ~TestLane() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }
  void run_on_host(std::function<void()> work) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return (queue_.empty() && !busy_) || failure_; });
    if (failure_) std::rethrow_exception(failure_);
  }

  bool failed() {
    const std::lock_guard lock(mutex_);
    return failure_ != nullptr;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto next = std::move(queue_.front());
      queue_.pop_front();
      if (failure_) continue;
      busy_ = true;
      lock.unlock();
      std::exception_ptr failure;
      try {
        next();
      } catch (...) { failure = std::current_exception(); }
      next = nullptr;
      lock.lock();
      busy_ = false;
      if (failure && !failure_) failure_ = failure;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::exception_ptr failure_;
  bool busy_ = false, closing_ = false;
  std::thread worker_;
};

}  // namespace voltapile::testing
