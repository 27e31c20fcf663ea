// Our own threads (libgomp gives false races under ThreadSanitizer). A loop is cut into tasks whose
// borders do not depend on the number of threads, so results do not either.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace voltapile {

class ThreadPool {
 public:
  // threads >= 1 counts the caller, who works too; ThreadPool(1) starts no thread.
  // With `cpus`, its own threads run on these alone (any of them: the system balances); the caller
  // binds itself, by bind_this_thread. Error(failure) where the system refuses.
  explicit ThreadPool(int threads, std::span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Runs body(begin, end) over [0, count) in pieces of `grain` (the last may be shorter); returns
  // when all are done. Pieces are taken dynamically; the first exception is rethrown here. Callers
  // on several threads take turns. Not reentrant: a body must not call for_each_range on the same
  // pool.
  void for_each_range(int64_t count, int64_t grain,
                      const std::function<void(int64_t, int64_t)>& body);
  // The same pieces, but each thread begins with those of its own share of [0, count), one of
  // threads() nearly equal ones in order, and helps the others when it is done: from call to call
  // the same memory is met by the same threads, so first touch places it well.
  void for_each_share(int64_t count, int64_t grain,
                      const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The calling thread runs on these cpus alone from now on; none: it is left as it is.
// Error(failure) where the system refuses.
void bind_this_thread(std::span<const int> cpus);

}  // namespace voltapile
