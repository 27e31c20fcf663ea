// Summary timers: always on, a few clock reads an instruction.
#pragma once
#include <array>
#include <cstdint>

#include "voltapile/schedule/instruction.hpp"

namespace voltapile {

// Seconds and counts by lane and op, always on, cheap; one per rank. Written by the lanes, read by
// the host once a step has been waited for.
struct SummaryTimers {
  std::array<double, kOpCount> busy_seconds{};
  std::array<int64_t, kOpCount> count{};
  std::array<double, kLaneCount> lane_busy_seconds{};
  double data_wait_seconds = 0;
  void add(const SummaryTimers& other);
};

}  // namespace voltapile
