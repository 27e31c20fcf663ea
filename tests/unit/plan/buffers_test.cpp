// Slots hold what the program needs and never two living values, by a checker that shares no code
// with the planner.
#include <cstdlib>
#include <map>
#include <tuple>

#include <gtest/gtest.h>

#include "voltapile/plan/plan.hpp"

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

uint64_t seeds() { return std::getenv("VOLTAPILE_FULL") ? 2000 : 150; }

struct Life {
  size_t first = 0, last = 0;
  size_t bytes = 0;
  std::string name;
  Value value{};
};

bool outlives_step(Value v, const Homes& homes) {
  return (v == Value::weights && homes.weights == Home::device) ||
         (v == Value::host_weights && homes.weights == Home::host) ||
         (v == Value::state && homes.optimizer != Home::nvme) || v == Value::step_state ||
         v == Value::multiplier || v == Value::workspace || v == Value::loss ||
         v == Value::norm_sums;
}

// First and last access of each life of each value, and the slot it was given.
void check_rank(const Plan& plan, const Phase& phase, int rank, bool training) {
  const Program& program = phase.programs[static_cast<size_t>(rank)];
  const BufferPlan& buffers = phase.buffers[static_cast<size_t>(rank)];
  const Homes homes = plan.deck.memory.homes();
  std::map<std::tuple<Value, int, int>, std::vector<Life>> all_lives;
  for (size_t i = 0; i < program.size(); ++i)
    for (const Operand& o : operands(program[i], phase.shape.chunks,
                                     {.keep_input = true, .training = training, .homes = homes})) {
      auto& own = all_lives[{o.value, o.chunk, o.micro}];
      const bool outlives = outlives_step(o.value, homes);
      if (own.empty() || (o.access == Access::write && !outlives)) {
        own.push_back({.first = outlives ? 0 : i,
                       .bytes = value_bytes(plan, phase, o.value, o.chunk),
                       .name = format("{} chunk {} micro {}", name_of(o.value), o.chunk, o.micro),
                       .value = o.value});
      }
      own.back().last = outlives ? program.size() : i;
    }
  std::vector<std::pair<std::tuple<Value, int, int>, Life>> lives;
  for (const auto& [key, own] : all_lives)
    for (const Life& life : own) lives.emplace_back(key, life);
  // The memory behind a slot, where gradients may be reduced in place: then the two are one value.
  std::map<std::pair<Value, int>, std::vector<std::pair<std::tuple<Value, int, int>, Life>>> held;
  for (const auto& [key, life] : lives) {
    const auto [value, chunk, micro] = key;
    const int slot = buffers.slot(value, chunk, micro);
    ASSERT_GE(slot, 0) << life.name << " has no slot";
    const Value pool = buffers.pool(value).stored_in;
    const auto& slots = buffers.pool(pool).slot_bytes;
    ASSERT_LT(static_cast<size_t>(slot), slots.size()) << life.name;
    EXPECT_GE(slots[static_cast<size_t>(slot)], life.bytes) << life.name << " does not fit";
    const Value owner = pool;  // in place: the two are one value
    auto& tenants = held[{pool, slot}];
    bool merged = false;
    for (auto& [other_key, other] : tenants)
      if (other.value != value && other_key == std::tuple{owner, chunk, micro}) {
        other.first = std::min(other.first, life.first);
        other.last = std::max(other.last, life.last);
        merged = true;
      }
    if (!merged) tenants.push_back({{owner, chunk, micro}, life});
  }
  for (const auto& [slot, tenants] : held)
    for (size_t a = 0; a < tenants.size(); ++a)
      for (size_t b = a + 1; b < tenants.size(); ++b) {
        const Life &one = tenants[a].second, &two = tenants[b].second;
        EXPECT_TRUE(one.last < two.first || two.last < one.first)
            << one.name << " and " << two.name << " share a slot while both are alive";
      }
}

TEST(Slots, NeverHoldTwoLivingValuesAndAlwaysFit) {
  for (uint64_t seed = 0; seed < seeds(); ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    const Plan plan = make_plan(test::random_deck(seed));
    for (int rank = 0; rank < plan.mesh.pp; ++rank) {
      check_rank(plan, plan.train, rank, true);
      check_rank(plan, plan.eval, rank, false);
    }
    if (HasFailure()) return;
  }
}

TEST(Slots, EvaluationLivesInTheMemoryOfTraining) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Plan plan = make_plan(test::random_deck(seed));
    for (size_t rank = 0; rank < plan.train.buffers.size(); ++rank)
      for (int v = 0; v < kValueCount; ++v)
        EXPECT_EQ(plan.train.buffers[rank].pool(static_cast<Value>(v)).slot_bytes,
                  plan.eval.buffers[rank].pool(static_cast<Value>(v)).slot_bytes);
  }
}

Deck pipeline_deck(std::string_view schedule, int pipeline, int chunks, int64_t micros) {
  Deck d = test::sample_deck();
  d.parallel.pipeline = pipeline;
  d.parallel.chunks = chunks;
  d.parallel.schedule = schedule;
  d.model.depth = pipeline * chunks;
  d.batch.global = d.batch.micro * micros;
  return d;
}
size_t slots(const Plan& plan, int rank, Value value) {
  return plan.train.buffers[static_cast<size_t>(rank)].pool(value).slot_bytes.size();
}

TEST(Slots, OneForwardOneBackwardKeepsAsManySavedSetsAsStagesAreLeft) {
  const Plan plan = make_plan(pipeline_deck("1f1b", 4, 1, 8));
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(slots(plan, rank, Value::saved), static_cast<size_t>(4 - rank));
}

TEST(Slots, GpipeKeepsASavedSetOfEachMicroBatch) {
  const Plan plan = make_plan(pipeline_deck("gpipe", 2, 1, 6));
  EXPECT_EQ(slots(plan, 0, Value::saved), 6u);
}

// DESIGN, "Why breadth-first carries the headline", point 2.
TEST(Slots, BreadthFirstWithAHostOptimizerHasTwoGradientBuffers) {
  Deck deck = pipeline_deck("breadth_first", 4, 5, 8);
  deck.memory.optimizer = Home::host;
  Plan plan = make_plan(deck);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(slots(plan, rank, Value::gradients), 2u);
    size_t largest = 0;
    for (int c = rank; c < 20; c += 4)
      largest = std::max(largest, value_bytes(plan, plan.train, Value::gradients, c));
    EXPECT_LE(plan.train.buffers[static_cast<size_t>(rank)].bytes(Value::gradients), 2 * largest);
  }
  // Reduced where they are, they stay until the update: a buffer a chunk.
  deck.memory.optimizer = Home::device;
  plan = make_plan(deck);
  ASSERT_TRUE(plan.reduced_in_place);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(slots(plan, rank, Value::gradients), 5u);
}

TEST(Slots, WhatOneLaneSendsAnotherMayOverwriteOneTurnLater) {
  const Plan plan = make_plan(pipeline_deck("1f1b", 2, 1, 8));
  // Sent activations leave at once; two buffers take turns.
  EXPECT_EQ(slots(plan, 0, Value::activation), 2u);
  const BufferPlan& buffers = plan.train.buffers[0];
  for (int micro = 0; micro + 1 < 8; ++micro)
    EXPECT_NE(buffers.slot(Value::activation, 1, micro),
              buffers.slot(Value::activation, 1, micro + 1));
}

}  // namespace
}  // namespace voltapile
