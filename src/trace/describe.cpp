#include "voltapile/trace/describe.hpp"

#include <algorithm>

#include "voltapile/base/format.hpp"
#include "voltapile/base/units.hpp"

namespace voltapile {

std::vector<std::string> describe(const SummaryTimers& timers, double wall_seconds) {
  std::vector<std::string> lines;
  if (!(wall_seconds > 0)) return lines;
  const auto percent = [&](double seconds) { return 100 * seconds / wall_seconds; };
  std::vector<std::pair<double, std::string>> parts;
  for (int op = 0; op < kOpCount; ++op) {
    const double share = percent(timers.busy_seconds[static_cast<size_t>(op)]);
    if (share >= 0.5)
      parts.emplace_back(share, format("{} {:.0f} %", name_of(static_cast<Op>(op)), share));
  }
  std::sort(parts.rbegin(), parts.rend());
  // Two lines of four read better than one of eight.
  std::string line;
  int in_line = 0;
  for (const auto& [share, text] : parts) {
    line += (in_line ? ", " : "") + text;
    if (++in_line == 4) {
      lines.push_back(line);
      line.clear();
      in_line = 0;
    }
  }
  if (in_line) lines.push_back(line);
  std::vector<std::string> lanes;
  for (int lane = 0; lane < kLaneCount; ++lane) {
    const double share = percent(timers.lane_busy_seconds[static_cast<size_t>(lane)]);
    if (share >= 0.5)
      lanes.push_back(format("{} {:.0f} %", name_of(static_cast<Lane>(lane)), share));
  }
  if (!lanes.empty()) lines.push_back("by lane: " + join(lanes, ", "));
  if (timers.data_wait_seconds > 0.005 * wall_seconds) {
    lines.push_back(format("waited for data {:.0f} %", percent(timers.data_wait_seconds)));
  }
  return lines;
}

}  // namespace voltapile
