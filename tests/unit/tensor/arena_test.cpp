// The plan's slots as memory: apart where they must be, together where the plan says so.
#include "voltapile/tensor/arena.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"
#include "voltapile/base/thread_pool.hpp"

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

TEST(Arena, SlotsAreAlignedAndDoNotOverlap) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const Plan plan = make_plan(test::random_deck(seed));
    const auto device = make_cpu_device(1);
    ThreadPool pool(1);
    for (const BufferPlan& buffers : plan.train.buffers) {
      const Arena arena(*device, buffers, pool);
      std::vector<std::tuple<std::byte*, size_t>> blocks;  // every slot once
      for (int v = 0; v < kValueCount; ++v) {
        const auto value = static_cast<Value>(v);
        const ValuePool& held = buffers.pool(value);
        if (held.stored_in != value) continue;
        for (int chunk = -1; chunk < plan.train.shape.chunks.chunks(); ++chunk)
          for (int micro = -1; micro < plan.train.shape.micros; ++micro) {
            const int slot = arena.slot(value, chunk, micro);
            ASSERT_EQ(slot, buffers.slot(value, chunk, micro));
            if (slot < 0) continue;
            std::byte* at = arena.at(value, chunk, micro);
            const size_t bytes = held.slot_bytes[static_cast<size_t>(slot)];
            if (bytes == 0) {
              EXPECT_EQ(at, nullptr);
              continue;
            }
            EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 256, 0u);
            blocks.emplace_back(at, bytes);
          }
      }
      std::sort(blocks.begin(), blocks.end());
      blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
      for (size_t i = 0; i + 1 < blocks.size(); ++i)
        EXPECT_LE(std::get<0>(blocks[i]) + std::get<1>(blocks[i]), std::get<0>(blocks[i + 1]));
    }
  }
}

TEST(Arena, AllocatesWhatTheMemoryTableSays) {
  const Plan plan = make_plan(test::random_deck(3));
  const auto device = make_cpu_device(1);
  ThreadPool pool(1);
  const Arena arena(*device, plan.train.buffers[0], pool);
  size_t on_host = 0;
  for (const ValuePool& held : plan.train.buffers[0].pools)
    for (size_t slot : held.slot_bytes) on_host += held.home == Home::host ? slot : 0;
  EXPECT_EQ(arena.bytes(), plan.device_bytes(0) + on_host);
}

// A device whose memory ends.
TEST(Arena, SaysWhatHeldTheMemoryThatIsMissing) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's allocator ends the program instead of refusing";
#endif
  Deck deck = test::sample_deck();
  Plan plan = make_plan(deck);
  const auto device = make_cpu_device(1);
  ThreadPool pool(1);
  BufferPlan buffers = plan.train.buffers[0];
  buffers.pools[static_cast<size_t>(Value::gradients)].slot_bytes = {size_t{1} << 60};
  try {
    const Arena arena(*device, buffers, pool);
    FAIL() << "2^60 bytes were granted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit);
    for (const char* part :
         {"gradients needs", "this rank held", "weights ", "and needs gradients"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Arena, EvaluationFindsTheWeightsOfTraining) {
  Deck deck = test::random_deck(5);
  deck.eval.batch = 3;
  const Plan plan = make_plan(deck);
  const auto device = make_cpu_device(1);
  ThreadPool pool(1);
  for (size_t rank = 0; rank < plan.train.buffers.size(); ++rank) {
    const Arena train(*device, plan.train.buffers[rank], pool);
    const size_t allocated = device->allocated_bytes();
    const Arena eval(train, plan.eval.buffers[rank]);
    EXPECT_EQ(device->allocated_bytes(), allocated);
    for (size_t c = 0; c < plan.chunks.size(); ++c)
      if (plan.chunks[c].rank == static_cast<int>(rank)) {
        const int chunk = static_cast<int>(c);
        EXPECT_EQ(train.at(Value::weights, chunk, -1), eval.at(Value::weights, chunk, -1));
      }
  }
}

TEST(Arena, GradientsReducedInPlaceAreTheGradients) {
  Deck deck = test::sample_deck();
  Plan plan = make_plan(deck);
  ASSERT_TRUE(plan.reduced_in_place);
  const auto device = make_cpu_device(1);
  ThreadPool pool(1);
  {
    const Arena arena(*device, plan.train.buffers[0], pool);
    EXPECT_EQ(arena.at(Value::reduced, 0, -1), arena.at(Value::gradients, 0, -1));
  }
  deck.precision.type = DType::bf16;
  deck.memory.gradients = GradientStore::working;
  plan = make_plan(deck);
  const Arena arena(*device, plan.train.buffers[0], pool);
  EXPECT_NE(arena.at(Value::reduced, 0, -1), arena.at(Value::gradients, 0, -1));
}

TEST(Arena, RefusesValuesWithoutASlotAndForeignPlans) {
  const Plan plan = make_plan(test::sample_deck());
  Deck other = test::sample_deck();
  other.model.dim = 64;
  const Plan larger = make_plan(other);
  const auto device = make_cpu_device(1);
  ThreadPool pool(1);
  const Arena arena(*device, plan.train.buffers[0], pool);
  EXPECT_EQ(arena.slot(Value::deferred, 0, 0), -1);
  EXPECT_THROW(arena.at(Value::deferred, 0, 0), Error);
  EXPECT_THROW(arena.at(Value::weights, 7, -1), Error);
  EXPECT_THROW(Arena(arena, larger.eval.buffers[0]), Error);
}

}  // namespace
}  // namespace voltapile
