#include "stream.hpp"

namespace voltapile::cpu {

void Monitor::wake_all() {
  for (auto& lane : lanes)
    if (lane) lane->wake();
}

void Monitor::fail(std::exception_ptr why) {
  if (failure) return;
  failure = std::move(why);
  wake_all();
}

CpuStream::~CpuStream() {
  while (first_) {
    Task* task = std::exchange(first_, first_->next);
    task->clear();
  }
}

void CpuStream::run_on_host(std::function<void()> work) { enqueue(std::move(work)); }

Task* CpuStream::take_task() {
  std::lock_guard lock(monitor_.mutex);
  if (free_) return std::exchange(free_, free_->next);
  tasks_.push_back(std::make_unique<Task>());
  return tasks_.back().get();
}

void CpuStream::push(Task* task) {
  task->next = nullptr;
  std::lock_guard lock(monitor_.mutex);
  if (first_) last_->next = task;
  else first_ = task;
  last_ = task;
  ++enqueued_;
  if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  if (idle_) arrived_.notify_one();
}

Event CpuStream::record() {
  std::lock_guard lock(monitor_.mutex);
  return {this, enqueued_};
}

void CpuStream::wait(Event event) {
  if (!event.stream || event.stream == this) return;
  CpuStream& other = on(*event.stream);
  VP_CHECK(&other.monitor_ == &monitor_, "an event of another device was waited for");
  enqueue([&other, ticket = event.ticket] {
    std::unique_lock lock(other.monitor_.mutex);
    other.wait_for(ticket, lock);
  });
}

void CpuStream::wait_on_host(Event event) {
  std::unique_lock lock(monitor_.mutex);
  wait_for(event.ticket, lock);
  if (monitor_.failure) std::rethrow_exception(monitor_.failure);
}

void CpuStream::wait_for(uint64_t ticket, std::unique_lock<std::mutex>& lock) {
  ++sleepers_;
  advanced_.wait(lock,
                 [&] { return completed_ >= ticket || monitor_.failure || monitor_.stopping; });
  --sleepers_;
}

void CpuStream::wait_until_idle() {
  std::unique_lock lock(monitor_.mutex);
  const uint64_t ticket = enqueued_;
  ++sleepers_;
  advanced_.wait(lock, [&] { return completed_ >= ticket || monitor_.stopping; });
  --sleepers_;
}

void CpuStream::wake() {
  arrived_.notify_all();
  advanced_.notify_all();
}

void CpuStream::join() {
  if (worker_.joinable()) worker_.join();
}

void CpuStream::work() {
  std::unique_lock lock(monitor_.mutex);
  for (;;) {
    idle_ = true;
    arrived_.wait(lock, [&] { return first_ || monitor_.stopping; });
    idle_ = false;
    if (monitor_.stopping) return;
    Task* task = std::exchange(first_, first_->next);
    const bool skip = monitor_.failure != nullptr;
    lock.unlock();
    std::exception_ptr failure;
    if (!skip) {
      try {
        task->run();
      } catch (...) { failure = std::current_exception(); }
    }
    task->clear();
    lock.lock();
    task->next = std::exchange(free_, task);
    ++completed_;
    if (failure) monitor_.fail(failure);
    if (sleepers_ > 0) advanced_.notify_all();
  }
}

}  // namespace voltapile::cpu
