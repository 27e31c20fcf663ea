#include <gtest/gtest.h>

#include "voltapile/report/report.hpp"

#include "intervals.hpp"
#include "measured_costs.hpp"
#include "simulated_trace.hpp"

namespace voltapile {
namespace {

TEST(Intervals, AreUnitedCutAndSubtracted) {
  Intervals a;
  for (const auto& [begin, end] : {std::pair{10, 20}, {15, 30}, {50, 60}, {30, 31}, {70, 70}})
    a.add(begin, end);
  EXPECT_EQ(a.length(), 31);
  EXPECT_EQ(a.parts().size(), 2u);
  EXPECT_EQ(a.within(25, 55).length(), 11);
  Intervals b;
  b.add(0, 12);
  b.add(18, 19);
  b.add(55, 90);
  EXPECT_EQ(a.without(b).parts(),
            (std::vector<std::pair<int64_t, int64_t>>{{12, 18}, {19, 31}, {50, 55}}));
  EXPECT_EQ(a.without(a).length(), 0);
  EXPECT_EQ(a.without(Intervals()).length(), 31);
}

class Schedules : public ::testing::TestWithParam<const char*> {};

TEST_P(Schedules, BubbleOfARunIsWhatSimulationSaysOfItsOwnTimes) {
  const Plan plan = make_plan(test::pipeline_deck(GetParam()));
  const Timeline timeline =
      simulate(plan.train.programs, plan.train.shape, test::uneven_costs(), 2, memory_of(plan));
  const Analysis a = analyse(test::simulated_trace(plan, timeline), plan);
  const Bubble expected = bubble(timeline, 4, 1);
  EXPECT_NEAR(a.bubble.value(), expected.fraction, 1e-6);
  EXPECT_NEAR(a.exposed_optimizer.value(), expected.exposed_optimizer, 1e-6);
  EXPECT_NEAR(a.bubble_simulated, expected.fraction, 0.005);
  EXPECT_GT(a.bubble.value(), 0.02);
  EXPECT_EQ(a.impossible_transfers, 0);
  EXPECT_GT(a.transfers, 0);
  EXPECT_NEAR(a.longest_notice_seconds, 0, 1e-9);
  EXPECT_EQ(a.first_step, 5);
  EXPECT_EQ(a.end_step, 7);
}

INSTANTIATE_TEST_SUITE_P(All, Schedules,
                         ::testing::Values("gpipe", "1f1b", "interleaved", "breadth_first",
                                           "zero_bubble_h1"));

// Two ranks of two chunks each, two micro-batches, forward 1, backward 2, updates on the host of
// 10: tests/unit/schedule works out by hand what they wait for.
Deck host_deck() {
  Deck deck = test::pipeline_deck("breadth_first");
  deck.parallel.pipeline = 2;
  deck.batch.global = 2 * deck.batch.micro;
  deck.memory.optimizer = Home::host;
  return deck;
}
Costs host_costs() {
  return {.forward = 1, .backward_input = 1, .backward_weight = 1, .update = 10};
}

TEST(Analysis, WaitsForUpdatesOfTheStepBeforeAreNoBubbleMeasuredOrSimulated) {
  const Plan plan = make_plan(host_deck());
  const Trace trace = test::simulated_trace(
      plan, simulate(plan.train.programs, plan.train.shape, host_costs(), 4, memory_of(plan)));
  const Analysis a = analyse(trace, plan);
  EXPECT_NEAR(a.exposed_optimizer.value(), 17.5 / 33, 1e-6);
  EXPECT_NEAR(a.exposed_optimizer_simulated, 17.5 / 33, 1e-6);
  EXPECT_NEAR(a.bubble.value(), 3.5 / 23, 1e-6);
  EXPECT_NEAR(a.bubble_simulated, 3.5 / 23, 1e-6);
}

TEST(Analysis, OneStepThatWaitsForUpdatesBeforeItIsNotMeasured) {
  for (const Home home : {Home::host, Home::device}) {
    Deck deck = host_deck();
    deck.memory.optimizer = home;
    const Plan plan = make_plan(deck);
    const Analysis a = analyse(
        test::simulated_trace(plan, simulate(plan.train.programs, plan.train.shape, host_costs())),
        plan);
    EXPECT_EQ(a.bubble.has_value(), home == Home::device);
    EXPECT_EQ(a.exposed_optimizer.has_value(), home == Home::device);
  }
}

TEST(Analysis, PipelinesBesideEachOtherAreMeasuredEachByItself) {
  Deck deck = host_deck();
  deck.parallel.data = 2;
  deck.batch.global *= 2;
  const Plan plan = make_plan(deck);
  Trace trace = test::simulated_trace(
      plan, simulate(plan.train.programs, plan.train.shape, host_costs(), 4, memory_of(plan)));
  // The second one is later, and the last backward of each of its steps takes 10 longer.
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank)
    for (TraceEvent& e : trace.ranks[rank].events) {
      if (plan.mesh.coord(static_cast<int>(rank)).dp == 0) continue;
      e.begin_ns += 7'000'000'000;
      e.end_ns += 7'000'000'000;
      if (e.name == static_cast<int32_t>(Op::backward) && e.chunk == 0 && e.micro == 1)
        e.end_ns += 10'000'000'000;
    }
  EXPECT_NEAR(analyse(trace, plan).bubble.value(), (3.5 / 23 + 8.5 / 33) / 2, 1e-6);
}

// A receive is posted early, the ranks come to the norm at different times, and one step hiccups.
TEST(Analysis, WaitingForAPeerIsNoPartOfACostAndOneSlowStepIsNotTypical) {
  const Plan plan = make_plan(test::pipeline_deck("1f1b"));
  Trace trace = test::simulated_trace(plan, simulate(plan.train.programs, plan.train.shape,
                                                     test::uneven_costs(), 5, memory_of(plan)));
  const Analysis before = analyse(trace, plan);
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank)
    for (TraceEvent& e : trace.ranks[rank].events) {
      const bool receives = e.name == static_cast<int32_t>(Op::receive_activation) ||
                            e.name == static_cast<int32_t>(Op::receive_gradient);
      if (receives) e.begin_ns -= 4'000'000;
      if (e.name == static_cast<int32_t>(Op::norm) && rank != 2) e.begin_ns -= 300'000;
      if (e.name == static_cast<int32_t>(Op::backward) && rank == 1 && e.step == 7 && e.micro == 0)
        e.begin_ns -= 8'000'000;
    }
  const Analysis after = analyse(trace, plan);
  EXPECT_NEAR(after.bubble_simulated, before.bubble_simulated, 1e-6);
  EXPECT_NEAR(measured_costs(trace, plan).costs.of({Op::norm, Lane::dp}), 0.0005, 1e-8);
  EXPECT_NEAR(after.bubble.value(), before.bubble.value(), 1e-6);
}

// In each step another chunk's backward takes twice its time: typical times would hide it.
TEST(Analysis, StepsThatAreSlowInDifferentPlacesAreEachSimulated) {
  const Plan plan = make_plan(test::pipeline_deck("1f1b"));
  const auto run = [&](int slow_chunk) {
    Costs costs;
    costs.of = [slow_chunk](const Instruction& i) {
      if (i.op == Op::forward) return 0.010;
      return i.op == Op::backward ? i.chunk == slow_chunk ? 0.040 : 0.020 : 0.0005;
    };
    return simulate(plan.train.programs, plan.train.shape, costs);
  };
  Timeline timeline;
  double begin = 0;
  for (int step = 0; step < 5; ++step) {
    double end = begin;
    for (Span span : run(step % 4).spans) {
      span.step = step;
      span.begin += begin;
      span.end += begin;
      end = std::max(end, span.end);
      timeline.spans.push_back(span);
    }
    begin = end;
  }
  const Analysis a = analyse(test::simulated_trace(plan, timeline), plan);
  EXPECT_GT(a.bubble.value(), bubble(run(-1), 4, 0).fraction + 0.05);
  EXPECT_NEAR(a.bubble_simulated, a.bubble.value(), 0.001);
}

Trace one_rank(const Plan& plan, const std::vector<TraceEvent>& events) {
  return {.mesh = plan.mesh,
          .deck = write_deck(plan.deck),
          .ranks = {{.place = "rank 0 (pp0 dp0 tp0)", .host = "a", .events = events}}};
}

TraceEvent event(int32_t name, int32_t lane, int64_t begin, int64_t end) {
  return {name, lane, name < kOpCount ? 0 : -1, -1, 5, test::kBegin + begin, test::kBegin + end,
          0,    0};
}
TraceEvent event(Op op, Lane lane, int64_t begin, int64_t end) {
  return event(static_cast<int32_t>(op), static_cast<int32_t>(lane), begin, end);
}
TraceEvent event(HostWork work, int64_t begin, int64_t end) {
  return event(static_cast<int32_t>(work), kMainLane, begin, end);
}

TEST(Analysis, SharesOfARankCountWhatNothingHides) {
  const Plan plan = make_plan(test::sample_deck());
  // 0         100 forward 400  backward 700 | 700 reduce 800 ... 850 update 950 | 1000 step
  const Analysis a =
      analyse(one_rank(plan, {event(HostWork::step, 0, 1000), event(HostWork::step_wait, 0, 1000),
                              event(HostWork::data_wait, 50, 100), event(HostWork::issue, 40, 50),
                              event(Op::load_batch, Lane::input, 0, 40),
                              event(Op::forward, Lane::compute, 100, 400),
                              event(Op::backward, Lane::compute, 400, 700),
                              event(Op::reduce_gradients, Lane::dp, 650, 800),
                              event(Op::update, Lane::compute, 850, 950)}),
              plan);
  const RankShare& rank = a.ranks.front();
  EXPECT_NEAR(rank.wall_seconds, 1000e-9, 1e-15);
  EXPECT_NEAR(rank.busy[static_cast<size_t>(Lane::compute)], 0.70, 1e-9);
  EXPECT_NEAR(rank.exposed_reduction, 0.10, 1e-9);
  EXPECT_NEAR(rank.optimizer, 0.10, 1e-9);
  EXPECT_NEAR(rank.data_wait, 0.05, 1e-9);
  EXPECT_NEAR(rank.issue, 0.01, 1e-9);
  EXPECT_NEAR(rank.covered, 0.90, 1e-9);
  EXPECT_NEAR(a.coverage, 0.90, 1e-9);
  EXPECT_EQ(a.operations.front().name, static_cast<int32_t>(HostWork::step_wait));
}

TEST(Analysis, FindsAReceiveThatEndsBeforeItsSendBegins) {
  const Plan plan = make_plan(test::pipeline_deck("1f1b"));
  Trace trace = test::simulated_trace(
      plan, simulate(plan.train.programs, plan.train.shape, test::uneven_costs(), 2));
  // Rank 1's clock is wrong by a second, and states 20 us.
  trace.ranks[1].clock_skew_ns = 20'000;
  for (TraceEvent& e : trace.ranks[1].events) {
    e.begin_ns -= 1'000'000'000;
    e.end_ns -= 1'000'000'000;
  }
  const Analysis a = analyse(trace, plan);
  EXPECT_GT(a.impossible_transfers, 0);
  EXPECT_NEAR(a.skew_seconds, 40e-6, 1e-12);
}

TEST(Analysis, RefusesATraceOfAnotherMesh) {
  const Plan plan = make_plan(test::pipeline_deck("1f1b"));
  Trace trace = test::simulated_trace(
      plan, simulate(plan.train.programs, plan.train.shape, test::uneven_costs(), 1));
  EXPECT_THROW(analyse(trace, make_plan(test::sample_deck())), Error);
}

}  // namespace
}  // namespace voltapile
