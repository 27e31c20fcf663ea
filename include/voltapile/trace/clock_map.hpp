// The clocks of ranks on one time base. Nobody needs a clock that is set: where all meet in a
// collective call, nobody leaves before the last one has come, and that bounds the offset between
// two clocks from both sides.
#pragma once
#include <cstdint>
#include <vector>

namespace voltapile {

// One collective call, as the clocks of two ranks saw it.
struct Meeting {
  double reference_entered = 0, reference_left = 0;  // seconds of rank 0's clock
  double entered = 0, left = 0;                      // seconds of this rank's
};

// This rank's clock less rank 0's, and how far that may be wrong.
struct ClockOffset {
  double at = 0;  // seconds of this rank's clock, halfway through the measurement
  double seconds = 0, skew = 0;
};
// The narrowest bounds of all meetings: entered - reference_left <= offset <= left -
// reference_entered (Cristian, "Probabilistic clock synchronization", 1989, for a collective).
// Needs one meeting at least.
ClockOffset fit_offset(const std::vector<Meeting>& meetings);

// Between two measurements the offset is taken to drift evenly; outside it stays.
class ClockMap {
 public:
  ClockMap() = default;  // the clock is rank 0's own
  ClockMap(const ClockOffset& first, const ClockOffset& second) : first_(first), second_(second) {}
  double to_reference(double seconds) const;
  double skew() const;  // of both, the larger

 private:
  ClockOffset first_, second_;
};

}  // namespace voltapile
