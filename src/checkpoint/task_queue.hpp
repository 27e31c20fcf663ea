// Private to checkpoint: work that goes on beside a thread, one task after the other.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace voltapile {

// After a task that throws, the others are left out, and each wait() rethrows what it threw.
class TaskQueue {
 public:
  TaskQueue() : thread_([this] { work(); }) {}
  // Leaves out what has not begun.
  ~TaskQueue() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // How many tasks there have been, this one included.
  int64_t add(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
    return ++added_;
  }
  // Until so many of them have ended.
  void wait(int64_t tasks) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= tasks || fault_ != nullptr; });
    if (fault_ != nullptr) std::rethrow_exception(fault_);
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return over_ || (!tasks_.empty() && fault_ == nullptr); });
      if (over_) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      std::exception_ptr fault;
      try {
        task();
      } catch (...) { fault = std::current_exception(); }
      lock.lock();
      fault_ = fault;
      ++ended_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  int64_t added_ = 0, ended_ = 0;
  bool over_ = false;
  std::exception_ptr fault_;
  std::thread thread_;  // the last: the others are there when it begins
};

}  // namespace voltapile
