#include "voltapile/base/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "voltapile/base/error.hpp"

namespace voltapile {

struct ThreadPool::Impl {
  std::mutex turn;  // one loop at a time
  std::mutex mutex;
  std::condition_variable start, finish;
  uint64_t generation = 0;
  int working = 0;
  bool stopping = false;
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  int64_t count = 0, grain = 1;
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::vector<std::thread> workers;

  void take_pieces() {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      try {
        (*body)(begin, std::min(count, begin + grain));
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next.store(count, std::memory_order_relaxed);
      }
    }
  }

  void work() {
    uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex);
        start.wait(lock, [&] { return stopping || generation != seen; });
        if (stopping) return;
        seen = generation;
      }
      take_pieces();
      std::lock_guard lock(mutex);
      if (--working == 0) finish.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  VP_CHECK(threads >= 1, "a thread pool needs at least one thread, not {}", threads);
  for (int i = 1; i < threads; ++i) impl_->workers.emplace_back([this] { impl_->work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->start.notify_all();
  for (auto& worker : impl_->workers) worker.join();
}

int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::for_each_range(int64_t count, int64_t grain,
                                const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (impl_->workers.empty() || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain)
      body(begin, std::min(count, begin + grain));
    return;
  }
  std::lock_guard turn(impl_->turn);
  {
    std::lock_guard lock(impl_->mutex);
    impl_->body = &body;
    impl_->count = count;
    impl_->grain = grain;
    impl_->next.store(0, std::memory_order_relaxed);
    impl_->failure = nullptr;
    impl_->working = static_cast<int>(impl_->workers.size());
    ++impl_->generation;
  }
  impl_->start.notify_all();
  impl_->take_pieces();
  std::unique_lock lock(impl_->mutex);
  impl_->finish.wait(lock, [&] { return impl_->working == 0; });
  if (impl_->failure) std::rethrow_exception(impl_->failure);
}

}  // namespace voltapile
