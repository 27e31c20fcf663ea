#include <gtest/gtest.h>

#include "voltapile/trace/summary.hpp"

namespace voltapile {
namespace {

// A different number in every entry, so that a forgotten or swapped one shows.
SummaryTimers filled(double scale) {
  SummaryTimers timers;
  double next = 1;
  for (double& seconds : timers.busy_seconds) seconds = scale * next++;
  for (int64_t& count : timers.count) count = static_cast<int64_t>(scale * next++);
  for (double& seconds : timers.lane_busy_seconds) seconds = scale * next++;
  timers.data_wait_seconds = scale * next;
  return timers;
}

TEST(SummaryTimers, add_up_entry_by_entry) {
  SummaryTimers sum = filled(1);
  sum.add(filled(2));
  const SummaryTimers expected = filled(3);
  EXPECT_EQ(sum.busy_seconds, expected.busy_seconds);
  EXPECT_EQ(sum.count, expected.count);
  EXPECT_EQ(sum.lane_busy_seconds, expected.lane_busy_seconds);
  EXPECT_EQ(sum.data_wait_seconds, expected.data_wait_seconds);
}

}  // namespace
}  // namespace voltapile
