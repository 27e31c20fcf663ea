// Counts every allocation of the process, so it is a program of its own.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "loader_support.hpp"

namespace {
std::atomic<int64_t> allocations{0};
}

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace voltapile {
namespace {

TEST(LoaderAllocation, NoneAfterTheFirstBatch) {
  const auto source = std::make_shared<NumberedSource>(1000);
  LoaderOptions options = numbered_options(32);
  options.workers = 3;
  options.flip = true;
  options.shift = 1;
  Memory memory(options, 4);
  Loader loader(source, options, memory.ring());
  // Every worker thread has started once each has filled something: take a few batches first.
  for (int step = 0; step < 50; ++step) {
    loader.next();
    loader.release();
  }
  const int64_t before = allocations;
  for (int step = 0; step < 500; ++step) {
    loader.next();
    loader.release();
  }
  EXPECT_EQ(allocations - before, 0);
}

}  // namespace
}  // namespace voltapile
