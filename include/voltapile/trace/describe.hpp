// Summary timers as lines for a person.
#pragma once
#include <string>
#include <vector>

#include "voltapile/trace/summary.hpp"

namespace voltapile {

// Busiest lanes and operations with their share of `wall_seconds`, e.g. "compute 78 %: forward 31
// %, backward 45 %".
std::vector<std::string> describe(const SummaryTimers& timers, double wall_seconds);

}  // namespace voltapile
