// A lane of the CPU device: a worker thread that runs tasks in order.
#pragma once
#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "voltapile/base/error.hpp"
#include "voltapile/device/device.hpp"
#include "voltapile/schedule/instruction.hpp"

namespace voltapile::cpu {

// A closure in a block of fixed size, which its queue reuses: enqueueing allocates nothing once the
// queue has reached its depth.
class Task {
 public:
  template <class F>
  void set(F&& f) {
    using Closure = std::decay_t<F>;
    static_assert(sizeof(Closure) <= sizeof(storage_) && alignof(Closure) <= 16);
    new (storage_.data()) Closure(std::forward<F>(f));
    run_ = [](void* self) { (*static_cast<Closure*>(self))(); };
    destroy_ = [](void* self) { static_cast<Closure*>(self)->~Closure(); };
  }
  void run() { run_(storage_.data()); }
  void clear() {
    destroy_(storage_.data());
    next = nullptr;
  }
  Task* next = nullptr;

 private:
  alignas(16) std::array<std::byte, 1024> storage_;
  void (*run_)(void*) = nullptr;
  void (*destroy_)(void*) = nullptr;
};

// What the lanes of one device share. One mutex: tasks are layer-sized, so it is hardly contended,
// and a failure on one lane must wake all of them.
struct Monitor {
  std::mutex mutex;
  std::exception_ptr failure;  // the first
  bool stopping = false;
  std::array<std::unique_ptr<class CpuStream>, kLaneCount> lanes;

  // The rest with `mutex` held.
  void wake_all();
  void fail(std::exception_ptr why);
};

class CpuStream final : public Stream {
 public:
  explicit CpuStream(Monitor& monitor) : monitor_(monitor) {}
  ~CpuStream() override;

  void run_on_host(std::function<void()> work) override;
  template <class F>
  void enqueue(F&& work) {
    Task* task = take_task();
    task->set(std::forward<F>(work));
    push(task);
  }
  Event record();
  void wait(Event event);  // enqueues
  void wait_on_host(Event event);
  void wait_until_idle();  // also after a failure  // blocks
  // With the monitor locked: nothing sleeps on this lane any more without looking again.
  void wake();
  void join();

 private:
  Task* take_task();
  void push(Task* task);
  void work();
  void wait_for(uint64_t ticket, std::unique_lock<std::mutex>& lock);

  Monitor& monitor_;
  std::condition_variable arrived_, advanced_;
  Task* first_ = nullptr;
  Task* last_ = nullptr;
  Task* free_ = nullptr;
  std::vector<std::unique_ptr<Task>> tasks_;
  uint64_t enqueued_ = 0, completed_ = 0;
  int sleepers_ = 0;  // on advanced_
  bool idle_ = false;
  std::thread worker_;
};

inline CpuStream& on(Stream& stream) { return static_cast<CpuStream&>(stream); }

}  // namespace voltapile::cpu
