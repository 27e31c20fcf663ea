// Summary timers as lines for a person.
#pragma once
#include <string>
#include <vector>

#include "voltapile/trace/summary.hpp"

namespace voltapile {

// Operations, then lanes, with their share of `wall_seconds`, busiest first: "backward 45 %,
// forward 31 %", "by lane: compute 78 %, pipe_in 12 %". A transfer's time includes waiting for its
// peer.
std::vector<std::string> describe(const SummaryTimers& timers, double wall_seconds);

}  // namespace voltapile
