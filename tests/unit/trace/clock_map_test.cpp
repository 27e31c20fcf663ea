#include "voltapile/trace/clock_map.hpp"

#include <random>

#include <gtest/gtest.h>

namespace voltapile {
namespace {

// Meetings in true time: everybody leaves after the last one came. `offset` is this rank's clock
// less rank 0's.
std::vector<Meeting> meetings(double offset, double start, int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> delay(1e4);  // 100 us on average
  std::vector<Meeting> result;
  double now = start;
  for (int i = 0; i < count; ++i) {
    const double reference = now + delay(random), mine = now + delay(random);
    const double last = std::max(reference, mine);
    const Meeting meeting{reference, last + delay(random), mine + offset,
                          last + delay(random) + offset};
    now = std::max(meeting.reference_left, meeting.left - offset);
    result.push_back(meeting);
  }
  return result;
}

TEST(ClockOffset, IsBracketedByTheMeetingsAndNarrowsWithTheirNumber) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const double offset = (seed % 2 ? 1 : -1) * 37.25 * seed;
    const ClockOffset few = fit_offset(meetings(offset, 5, 2, seed));
    const ClockOffset many = fit_offset(meetings(offset, 5, 64, seed));
    EXPECT_LE(std::abs(few.seconds - offset), few.skew + 1e-9) << seed;
    EXPECT_LE(std::abs(many.seconds - offset), many.skew + 1e-9) << seed;
    EXPECT_LE(many.skew, 60e-6) << seed;
  }
}

TEST(ClockMap, FollowsADriftBetweenTwoMeasurementsAndKeepsStillOutside) {
  const ClockMap map({.at = 100, .seconds = 7, .skew = 1e-6},
                     {.at = 200, .seconds = 9, .skew = 3e-6});
  EXPECT_DOUBLE_EQ(map.to_reference(100), 93);
  EXPECT_DOUBLE_EQ(map.to_reference(150), 142);
  EXPECT_DOUBLE_EQ(map.to_reference(200), 191);
  EXPECT_DOUBLE_EQ(map.to_reference(50), 43);
  EXPECT_DOUBLE_EQ(map.to_reference(300), 291);
  EXPECT_DOUBLE_EQ(map.skew(), 3e-6);
}

TEST(ClockMap, OfRankZeroChangesNothing) {
  EXPECT_EQ(ClockMap().to_reference(12.5), 12.5);
  EXPECT_EQ(ClockMap().skew(), 0);
}

}  // namespace
}  // namespace voltapile
