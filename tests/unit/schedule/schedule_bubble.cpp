// The simulator against formulas and against times worked out by hand.
#include <tuple>

#include <gtest/gtest.h>

#include "voltapile/schedule/schedule.hpp"

#include "shapes.hpp"

namespace voltapile {
namespace {

struct Passes {
  double forward, input, weight;
};
// Sums of these are exact in double, so equality is exact.
constexpr Passes kPasses[] = {{1, 1, 1}, {1, 2, 1}, {2, 1, 1},   {1, 2, 2},
                              {4, 3, 2}, {3, 1, 1}, {1, .5, .5}, {1, 3, 1}};

class Bubbles : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Bubbles, testing::ValuesIn(schedule_names()),
                         [](const auto& param) { return "of_" + param.param; });

TEST_P(Bubbles, equal_the_formula_where_transfers_take_no_time) {
  int compared = 0;
  for (const ScheduleShape& shape : shape_grid(GetParam())) {
    const std::vector<Program> programs = lowered(GetParam(), shape);
    for (const Passes& passes : kPasses) {
      Costs costs;
      costs.forward = passes.forward;
      costs.backward_input = passes.input;
      costs.backward_weight = passes.weight;
      const auto formula = bubble_formula(GetParam(), shape, costs);
      if (!formula) continue;
      const Timeline timeline = simulate(programs, shape, costs, 2);
      for (int step : {0, 1})
        ASSERT_NEAR(bubble(timeline, shape.chunks.ranks, step).fraction, *formula, 1e-13)
            << show(GetParam(), shape) << ", F " << passes.forward << " I " << passes.input << " W "
            << passes.weight << ", step " << step;
      ++compared;
    }
  }
  EXPECT_GT(compared, 100);
}

// Literal numbers, so that formula and simulator cannot be wrong together.
TEST(BubbleFormula, gives_the_published_numbers) {
  const ScheduleShape wide{cyclic_chunks(4, 1), 16}, deep{cyclic_chunks(4, 10), 16};
  EXPECT_NEAR(*bubble_formula("gpipe", wide, {}), 0.158, 5e-4);
  EXPECT_NEAR(*bubble_formula("1f1b", wide, {}), 3. / 19, 1e-15);
  EXPECT_NEAR(*bubble_formula("breadth_first", deep, {}), 3. / 163, 1e-15);
  EXPECT_NEAR(*bubble_formula("interleaved", deep, {}), 0.018, 5e-4);
  EXPECT_NEAR(*bubble_formula("zero_bubble_h1", wide, {}), 3. / 51, 1e-15);
  EXPECT_FALSE(bubble_formula("file", wide, {}));
}

TEST(BubbleFormula, is_silent_where_it_does_not_hold) {
  EXPECT_FALSE(bubble_formula("breadth_first", {cyclic_chunks(4, 2), 3}, {}));
  EXPECT_FALSE(bubble_formula("breadth_first", {{2, {0, 1, 1, 0}}, 4}, {}));
  EXPECT_FALSE(bubble_formula("zero_bubble_h1", {cyclic_chunks(4, 1), 3}, {}));
  Costs heavy_weights;
  heavy_weights.backward_weight = 2;
  EXPECT_FALSE(bubble_formula("zero_bubble_h1", {cyclic_chunks(4, 1), 8}, heavy_weights));
}

Costs headline(double transfer) {
  Costs costs;
  costs.backward_input = 1;
  costs.backward_weight = 1;
  costs.recompute = 1;
  costs.transfer = transfer;
  return costs;
}

TEST(Headline, breadth_first_stays_at_1_9_percent_with_transfers_of_6_to_8_percent) {
  const ScheduleShape shape{cyclic_chunks(4, 10), 16};
  const auto programs = lowered("breadth_first", shape);
  for (double transfer : {0.06, 0.07, 0.08}) {
    const Timeline timeline = simulate(programs, shape, headline(transfer), 2);
    EXPECT_NEAR(bubble(timeline, 4, 1).fraction, 0.019, 0.0002) << transfer;
  }
}

TEST(Headline, recomputation_needs_no_gradient_so_it_fills_a_part_of_the_bubble) {
  const ScheduleShape shape{cyclic_chunks(4, 10), 16};
  const auto programs = lowered("breadth_first", shape, {true, false, true});
  const Timeline timeline = simulate(programs, shape, headline(0.07), 2);
  EXPECT_NEAR(bubble(timeline, 4, 1).fraction, 0.0145, 0.0002);
}

// begin and end of one instruction.
std::pair<double, double> when(const Timeline& timeline, int rank, Op op, int chunk, int micro,
                               int step = 0) {
  for (const Span& span : timeline.spans)
    if (span.rank == rank && span.step == step && span.instruction.op == op &&
        span.instruction.chunk == chunk && span.instruction.micro == micro)
      return {span.begin, span.end};
  ADD_FAILURE() << name_of(op) << " is not in the timeline";
  return {};
}
using Times = std::pair<double, double>;

TEST(Simulation, a_transfer_takes_both_ranks_lanes_and_overlaps_compute) {
  const ScheduleShape shape{cyclic_chunks(2, 1), 2};
  Costs costs;
  costs.transfer = 4;
  const Timeline timeline = simulate(lowered("gpipe", shape), shape, costs);
  EXPECT_EQ(when(timeline, 0, Op::forward, 0, 1), Times(1, 2));
  EXPECT_EQ(when(timeline, 0, Op::send_activation, 1, 0), Times(1, 5));
  EXPECT_EQ(when(timeline, 1, Op::receive_activation, 1, 0), Times(1, 5));
  EXPECT_EQ(when(timeline, 1, Op::receive_activation, 1, 1), Times(5, 9)) << "one at a time";
  EXPECT_EQ(when(timeline, 1, Op::forward, 1, 1), Times(9, 10));
  EXPECT_EQ(when(timeline, 1, Op::backward, 1, 0), Times(10, 12));
  EXPECT_EQ(when(timeline, 0, Op::receive_gradient, 1, 0), Times(12, 16));
  EXPECT_EQ(when(timeline, 0, Op::backward, 0, 0), Times(16, 18));
}

TEST(Simulation, chunks_weigh_what_they_are_given_and_recompute_counts_once) {
  const ScheduleShape shape{cyclic_chunks(1, 2), 1};
  Costs costs;
  costs.recompute = 1;
  costs.chunk_weight = {1, 3};
  for (const bool instructions : {false, true}) {
    const Timeline timeline =
        simulate(lowered("breadth_first", shape, {instructions, false, true}), shape, costs);
    EXPECT_EQ(when(timeline, 0, Op::forward, 1, 0), Times(1, 4));
    EXPECT_EQ(when(timeline, 0, Op::backward, 1, 0).second, 13);
    EXPECT_EQ(when(timeline, 0, Op::backward, 0, 0).second, 16);
  }
}

// Two chunks on one rank, updates of 5 on the host: the first chunk's forward waits for its own
// from 6 on, the second's from 12 on, until 16; the step is over at 21.
TEST(Simulation, waits_on_updates_are_exposed_optimizer_and_no_bubble) {
  const ScheduleShape shape{cyclic_chunks(1, 2), 1, {.optimizer = Home::host}};
  Costs costs;
  costs.update = 5;
  const auto programs = lowered("breadth_first", shape, {false, false, true});
  const Timeline timeline = simulate(programs, shape, costs, 2);
  EXPECT_EQ(when(timeline, 0, Op::update, 0, -1), Times(6, 11));
  EXPECT_EQ(when(timeline, 0, Op::forward, 0, 0, 1), Times(11, 12));
  EXPECT_EQ(when(timeline, 0, Op::forward, 1, 0, 1), Times(16, 17));
  const Bubble result = bubble(timeline, 1, 1);
  EXPECT_DOUBLE_EQ(result.exposed_optimizer, (5 + 4) / 15.);
  EXPECT_DOUBLE_EQ(result.fraction, 0);
  EXPECT_DOUBLE_EQ(bubble(timeline, 1, 0).exposed_optimizer, 0);
}

// Two chunks on each of two ranks, two micro-batches, updates of 10 on the host. From the norm on:
// rank 0: update 0 to 10 to 20; F 10 11 12, waits for its update, F 20 21 22, B 25 27 29, 29 31 33
// rank 1: update 0 to 10 to 20; F 11 12 13, waits for rank 0,     F 21 22 23, B 23 25 27, 27 29 31
// Rank 1's first forward waits for rank 0's, and so until 10 for rank 0's update.
TEST(Simulation, waits_on_the_updates_of_another_rank_are_exposed_optimizer_too) {
  const ScheduleShape shape{cyclic_chunks(2, 2), 2, {.optimizer = Home::host}};
  Costs costs;
  costs.update = 10;
  const auto programs = lowered("breadth_first", shape);
  const SteadyState state = steady_state(programs, shape, costs);
  EXPECT_DOUBLE_EQ(state.step_seconds, 33);
  EXPECT_DOUBLE_EQ(state.bubble.exposed_optimizer, (10 + 8 + 10 + 7) / 2. / 33);
  EXPECT_DOUBLE_EQ(state.bubble.fraction, (3 + 4) / 2. / 23);
  EXPECT_DOUBLE_EQ(state.bubble.per_rank[0], 3. / 23);
  EXPECT_DOUBLE_EQ(state.bubble.per_rank[1], 4. / 23) << "F of 20 to 21 on rank 0 is waited for";
}

// The last rank's update ends 1.5 after the first forward began, half a forward before its input:
// all wait for the first rank's update of 5 and for no other. A step takes 3 for each micro-batch,
// and for the pipeline's two other ranks.
TEST(Simulation, an_update_that_ends_before_the_input_comes_is_not_exposed) {
  const ScheduleShape shape{cyclic_chunks(3, 1), 4, {.optimizer = Home::host}};
  Costs costs;
  costs.of = [](const Instruction& i) {
    if (i.op == Op::update) return i.chunk == 2 ? 6.5 : 5;
    return i.op == Op::forward ? 1 : i.op == Op::backward ? 2 : 0.;
  };
  const Bubble result = steady_state(lowered("gpipe", shape), shape, costs).bubble;
  EXPECT_DOUBLE_EQ(result.exposed_optimizer, 5. / (5 + 3 * (4 + 2)));
  EXPECT_NEAR(result.fraction, *bubble_formula("gpipe", shape, {}), 1e-15);
}

TEST(Simulation, takes_each_instructions_own_time_where_there_is_one) {
  const ScheduleShape shape{cyclic_chunks(2, 1), 2};
  Costs costs;
  costs.of = [](const Instruction& i) {
    return i.op == Op::send_activation ? 4 : i.op == Op::forward ? 1 + i.micro : 0.;
  };
  const Timeline timeline = simulate(lowered("gpipe", shape), shape, costs);
  EXPECT_EQ(when(timeline, 0, Op::forward, 0, 1), Times(1, 3));
  EXPECT_EQ(when(timeline, 1, Op::receive_activation, 1, 0), Times(1, 5));
  EXPECT_EQ(when(timeline, 1, Op::forward, 1, 1), Times(9, 11));
}

TEST(SteadyState, is_reached) {
  int looks = 0, exposed = 0;
  for (const std::string& name : schedule_names())
    for (ScheduleShape shape : shape_grid(name))
      for (const bool early : {false, true}) {
        shape.homes.optimizer = Home::host;
        shape.early_updates = early;
        const auto programs = lowered(name, shape);
        for (const double update : {3., 20.}) {
          Costs costs;
          costs.transfer = 0.1;
          costs.offload = 0.3;
          costs.update = update;
          const SteadyState state = steady_state(programs, shape, costs);
          const Timeline timeline = simulate(programs, shape, costs, 9);
          const Bubble later = bubble(timeline, shape.chunks.ranks, 8);
          const double seconds = when(timeline, 0, Op::norm, -1, -1, 8).second -
                                 when(timeline, 0, Op::norm, -1, -1, 7).second;
          ASSERT_NEAR(state.step_seconds, seconds, 1e-9) << show(name, shape);
          ASSERT_NEAR(state.bubble.fraction, later.fraction, 1e-9) << show(name, shape);
          ASSERT_NEAR(state.bubble.exposed_optimizer, later.exposed_optimizer, 1e-9)
              << show(name, shape);
          ++looks;
          exposed += later.exposed_optimizer > 0.05;
        }
      }
  EXPECT_GT(exposed, looks / 12);
}

TEST(Simulation, norm_waits_for_every_rank) {
  const ScheduleShape shape{cyclic_chunks(3, 1), 4};
  const Timeline timeline = simulate(lowered("1f1b", shape), shape, {});
  const double end = when(timeline, 0, Op::backward, 0, 3).second;
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(when(timeline, rank, Op::norm, -1, -1), Times(end, end));
}

// Rank 0 is done with step 3 at 20 and waits for an update; rank 1 goes on to 24.
TEST(Bubble, has_no_part_in_waits_of_the_next_step) {
  const auto span = [](int64_t step, int rank, Op op, Lane lane, double begin, double end) {
    return Span{rank, step, {op, lane, static_cast<int16_t>(rank), 0}, begin, end};
  };
  const Lane compute = Lane::compute;
  const Timeline timeline{
      {span(3, 0, Op::forward, compute, 10, 14), span(3, 1, Op::forward, compute, 14, 18),
       span(3, 0, Op::backward, compute, 14, 20), span(3, 1, Op::backward, compute, 18, 24),
       span(3, 0, Op::update, Lane::host, 20, 30), span(4, 0, Op::forward, compute, 30, 34)}};
  EXPECT_DOUBLE_EQ(bubble(timeline, 2, 3).exposed_optimizer, 0);
  EXPECT_DOUBLE_EQ(bubble(timeline, 2, 3).fraction, 4. / 14);
}

TEST(Bubble, is_idle_time_between_first_forward_and_last_backward) {
  const auto span = [](int rank, Op op, double begin, double end) {
    return Span{rank, 3, {op, Lane::compute, 0, 0}, begin, end};
  };
  const Timeline timeline{{span(0, Op::forward, 10, 12), span(1, Op::forward, 12, 14),
                           span(1, Op::backward, 14, 18), span(0, Op::backward, 18, 20)}};
  const Bubble result = bubble(timeline, 2, 3);
  EXPECT_DOUBLE_EQ(result.per_rank[0], 0.6);
  EXPECT_DOUBLE_EQ(result.per_rank[1], 0.4);
  EXPECT_DOUBLE_EQ(result.fraction, 0.5);
  EXPECT_EQ(bubble(timeline, 2, 4).fraction, 0) << "a step that is not in the timeline";
}

}  // namespace
}  // namespace voltapile
