// Our own threads (libgomp gives false races under ThreadSanitizer). A loop is cut into tasks whose
// borders do not depend on the number of threads, so results do not either.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

namespace voltapile {

class ThreadPool {
 public:
  // threads >= 1 counts the caller, who works too; ThreadPool(1) starts no thread.
  explicit ThreadPool(int threads);
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

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace voltapile
