// Private to checkpoint: work that goes on beside a thread.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace voltapile {

// Tasks begin in the order in which they were added, as many at once as there are threads. After
// one that throws, those that have not begun are left out, and each wait() rethrows what it threw;
// others may still be at work until the destructor returns.
class TaskQueue {
 public:
  explicit TaskQueue(int threads = 1) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  // Leaves out what has not begun.
  ~TaskQueue() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    added_one_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // How many tasks there have been, this one included.
  int64_t add(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    unfinished_.insert(++added_);
    tasks_.push_back({added_, std::move(task)});
    added_one_.notify_one();
    return added_;
  }
  // Until the first `tasks` of them have ended.
  void wait(int64_t tasks) {
    std::unique_lock lock(mutex_);
    ended_one_.wait(lock, [&] { return fault_ != nullptr || ended_first(tasks); });
    if (fault_ != nullptr) std::rethrow_exception(fault_);
  }
  // Whether wait() would not.
  bool ended(int64_t tasks) {
    const std::lock_guard lock(mutex_);
    return fault_ != nullptr || ended_first(tasks);
  }

 private:
  struct Task {
    int64_t number = 0;
    std::function<void()> run;
  };
  bool ended_first(int64_t tasks) const {
    return unfinished_.empty() || *unfinished_.begin() > tasks;
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      added_one_.wait(lock, [&] { return over_ || (!tasks_.empty() && fault_ == nullptr); });
      if (over_) return;
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      std::exception_ptr fault;
      try {
        task.run();
      } catch (...) { fault = std::current_exception(); }
      lock.lock();
      if (fault_ == nullptr) fault_ = fault;
      unfinished_.erase(task.number);
      ended_one_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable added_one_, ended_one_;
  std::deque<Task> tasks_;
  std::set<int64_t> unfinished_;
  int64_t added_ = 0;
  bool over_ = false;
  std::exception_ptr fault_;
  std::vector<std::thread> threads_;  // the last: the others are there when they begin
};

}  // namespace voltapile
