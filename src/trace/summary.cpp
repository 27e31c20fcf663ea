#include "voltapile/trace/summary.hpp"

namespace voltapile {

void SummaryTimers::add(const SummaryTimers& other) {
  for (size_t op = 0; op < busy_seconds.size(); ++op) {
    busy_seconds[op] += other.busy_seconds[op];
    count[op] += other.count[op];
  }
  for (size_t lane = 0; lane < lane_busy_seconds.size(); ++lane)
    lane_busy_seconds[lane] += other.lane_busy_seconds[lane];
  data_wait_seconds += other.data_wait_seconds;
}

}  // namespace voltapile
