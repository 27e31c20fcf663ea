#include "voltapile/trace/clock_map.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "voltapile/base/error.hpp"

namespace voltapile {

ClockOffset fit_offset(const std::vector<Meeting>& meetings) {
  VP_CHECK(!meetings.empty(), "an offset without a meeting");
  double low = -std::numeric_limits<double>::infinity(), high = -low;
  for (const Meeting& m : meetings) {
    low = std::max(low, m.entered - m.reference_left);
    high = std::min(high, m.left - m.reference_entered);
  }
  // Clocks that drift during the measurement can leave bounds that cross by a little.
  return {(meetings.front().entered + meetings.back().left) / 2, (low + high) / 2,
          std::abs(high - low) / 2};
}

double ClockMap::to_reference(double seconds) const {
  const double length = second_.at - first_.at;
  const double part = length > 0 ? std::clamp((seconds - first_.at) / length, 0.0, 1.0) : 1.0;
  return seconds - (first_.seconds + part * (second_.seconds - first_.seconds));
}

double ClockMap::skew() const { return std::max(first_.skew, second_.skew); }

}  // namespace voltapile
