#include "divergence.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace voltapile {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TrainRecord sound(int64_t step, double loss = 1) { return {.step = step, .loss = loss}; }
TrainRecord skipped(int64_t step) { return {.step = step, .loss = kNaN, .skipped = true}; }

Deck::Run rules(int64_t skip_limit, double spike_factor) {
  Deck::Run rules;
  rules.skip_limit = skip_limit;
  rules.spike_factor = spike_factor;
  return rules;
}

TEST(Divergence, IsSoManySkippedStepsInARow) {
  const Deck::Run three = rules(3, 0);
  DivergenceJudge judge(three);
  for (const int64_t step : {1, 2, 4, 5}) {
    EXPECT_FALSE(judge.judge(skipped(step), "head.weight"));
    if (step == 2) EXPECT_FALSE(judge.judge(sound(3), ""));
  }
  const auto verdict = judge.judge(skipped(6), "head.weight");
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->first_step, 4);
  EXPECT_NE(verdict->cause.find("first in head.weight"), std::string::npos) << verdict->cause;
}

TEST(Divergence, IsALossThatIsNotFiniteInAStepThatCounts) {
  const Deck::Run many = rules(50, 0);
  DivergenceJudge judge(many);
  EXPECT_FALSE(judge.judge(skipped(1), "head.bias"));
  const auto verdict = judge.judge(sound(2, kNaN), "");
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->first_step, 2);
}

TEST(Divergence, IsALossFarAboveTheMeanOfAFullWindow) {
  const Deck::Run spike = rules(50, 2);
  DivergenceJudge judge(spike);
  EXPECT_FALSE(judge.judge(sound(1, 1000), ""));  // leaves the window
  for (int64_t step = 2; step <= 21; ++step)
    EXPECT_FALSE(judge.judge(sound(step, step % 2 == 0 ? 0.5 : 1.5), "")) << step;
  EXPECT_FALSE(judge.judge(skipped(22), "head.bias"));  // is not in the window
  EXPECT_FALSE(judge.judge(sound(23, 2), ""));          // not more than twice the mean
  const auto verdict = judge.judge(sound(24, 2.2), "");
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->first_step, 24);
  EXPECT_NE(verdict->cause.find("run.spike_factor"), std::string::npos) << verdict->cause;
}

TEST(Divergence, IsJudgedAsIfTheRunHadNeverStopped) {
  const Deck::Run both = rules(3, 2);
  MetricLines lines;
  for (int64_t step = 1; step <= 20; ++step) lines.train.push_back(sound(step));
  for (int64_t step = 21; step <= 22; ++step) lines.train.push_back(skipped(step));
  lines.train.push_back(sound(23, 50));  // beyond the checkpoint
  DivergenceJudge judge(both);
  judge.take_over(lines, 22);
  const auto third = judge.judge(skipped(23), "head.bias");
  ASSERT_TRUE(third);
  EXPECT_EQ(third->first_step, 21);
  DivergenceJudge again(both);
  again.take_over(lines, 22);
  EXPECT_TRUE(again.judge(sound(23, 2.5), ""));
}

TEST(Divergence, CountsTheRewindsUpToAStep) {
  MetricLines lines;
  EXPECT_EQ(rewinds_before(lines, 100), 0);
  lines.rewinds = {{.step = 20, .from_step = 30, .rewinds = 1},
                   {.step = 10, .from_step = 25, .rewinds = 2}};
  EXPECT_EQ(rewinds_before(lines, 9), 0);
  EXPECT_EQ(rewinds_before(lines, 10), 2);
  EXPECT_EQ(rewinds_before(lines, 20), 2);
}

}  // namespace
}  // namespace voltapile
