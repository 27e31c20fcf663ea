#include "voltapile/base/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>

#include "voltapile/base/error.hpp"

namespace voltapile {

namespace {

void bind(pthread_t thread, std::span<const int> cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    VP_CHECK(0 <= cpu && cpu < CPU_SETSIZE, "cpu {} of {}", cpu, CPU_SETSIZE);
    CPU_SET(static_cast<size_t>(cpu), &set);
  }
  if (const int error = pthread_setaffinity_np(thread, sizeof(set), &set); error != 0)
    throw Error(ExitCode::failure,
                format("a thread cannot be bound to {} cpus, of which cpu {}: {}", cpus.size(),
                       cpus[0], std::strerror(error)));
}

}  // namespace

struct ThreadPool::Impl {
  // Pieces that one thread begins with: alone in its cache line.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  std::mutex turn;  // one loop at a time
  std::mutex mutex;
  std::condition_variable start, finish;
  uint64_t generation = 0;
  int working = 0;
  bool stopping = false;
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  int64_t count = 0, grain = 1;
  std::vector<Share> shares;
  size_t used_shares = 1;
  std::exception_ptr failure;
  std::vector<std::thread> workers;

  explicit Impl(size_t threads) : shares(threads) {}

  void take_pieces(size_t self) {
    for (size_t i = 0; i < used_shares; ++i) take_pieces(shares[(self + i) % used_shares]);
  }
  void take_pieces(Share& share) {
    for (;;) {
      const int64_t begin = share.next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= share.end) return;
      try {
        (*body)(begin, std::min(share.end, begin + grain));
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        for (Share& other : shares) other.next.store(other.end, std::memory_order_relaxed);
      }
    }
  }

  void work(size_t self) {
    uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex);
        start.wait(lock, [&] { return stopping || generation != seen; });
        if (stopping) return;
        seen = generation;
      }
      take_pieces(self);
      std::lock_guard lock(mutex);
      if (--working == 0) finish.notify_one();
    }
  }

  void stop() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    start.notify_all();
    for (auto& worker : workers) worker.join();
  }

  void run(int64_t to_do, int64_t piece, size_t wanted_shares,
           const std::function<void(int64_t, int64_t)>& each) {
    if (to_do <= 0) return;
    piece = std::max<int64_t>(piece, 1);
    if (workers.empty() || to_do <= piece) {
      for (int64_t begin = 0; begin < to_do; begin += piece)
        each(begin, std::min(to_do, begin + piece));
      return;
    }
    std::lock_guard one_loop(turn);
    {
      std::lock_guard lock(mutex);
      body = &each;
      count = to_do;
      grain = piece;
      used_shares = wanted_shares;
      const auto parts = static_cast<int64_t>(wanted_shares), pieces = (count - 1) / grain + 1;
      for (int64_t i = 0; i < parts; ++i) {
        Share& share = shares[static_cast<size_t>(i)];
        share.next.store(pieces * i / parts * grain, std::memory_order_relaxed);
        share.end = std::min(count, pieces * (i + 1) / parts * grain);
      }
      failure = nullptr;
      working = static_cast<int>(workers.size());
      ++generation;
    }
    start.notify_all();
    take_pieces(0);
    std::unique_lock lock(mutex);
    finish.wait(lock, [&] { return working == 0; });
    if (failure) std::rethrow_exception(failure);
  }
};

ThreadPool::ThreadPool(int threads, std::span<const int> cpus) {
  VP_CHECK(threads >= 1, "a thread pool needs at least one thread, not {}", threads);
  impl_ = std::make_unique<Impl>(static_cast<size_t>(threads));
  try {
    for (int i = 1; i < threads; ++i) {
      Impl* impl = impl_.get();
      impl->workers.emplace_back([impl, i] { impl->work(static_cast<size_t>(i)); });
      bind(impl->workers.back().native_handle(), cpus);
    }
  } catch (...) {
    impl_->stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { impl_->stop(); }

int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::for_each_range(int64_t count, int64_t grain,
                                const std::function<void(int64_t, int64_t)>& body) {
  impl_->run(count, grain, 1, body);
}

void ThreadPool::for_each_share(int64_t count, int64_t grain,
                                const std::function<void(int64_t, int64_t)>& body) {
  impl_->run(count, grain, impl_->shares.size(), body);
}

void bind_this_thread(std::span<const int> cpus) { bind(pthread_self(), cpus); }

}  // namespace voltapile
