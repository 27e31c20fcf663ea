#include <algorithm>

#include "voltapile/base/error.hpp"
#include "voltapile/checkpoint/checkpoint.hpp"

#include "folder.hpp"
#include "together.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

// The best first: up to `last` from the highest step down, then the others from the lowest up.
std::vector<int64_t> candidates_in(const fs::path& checkpoints, int64_t last) {
  if (!fs::exists(checkpoints)) return {};
  std::vector<int64_t> steps = whole_steps(checkpoints);
  const auto later = std::upper_bound(steps.begin(), steps.end(), last);
  std::reverse(steps.begin(), later);
  return steps;
}

}  // namespace

std::optional<fs::path> rewind_checkpoints(const fs::path& checkpoints, int64_t last,
                                           Communicator& world) {
  // All go by what the first rank sees.
  std::vector<int64_t> mine;
  together(world, [&]() -> std::string {
    if (world.rank() == 0) mine = candidates_in(checkpoints, last);
    return "";
  });
  std::vector<std::string> bad;
  for (size_t next = 0;; ++next) {
    const std::string name = together(world, [&]() -> std::string {
                               return next < mine.size() ? step_name(mine[next]) : "";
                             }).front();
    if (name.empty() && bad.empty()) return std::nullopt;
    if (name.empty()) {
      throw Error(ExitCode::bad_data, format("{}: no checkpoint there is good:\n  {}",
                                             checkpoints.string(), join(bad, "\n  ")));
    }
    const fs::path folder = checkpoints / name;
    const std::vector<std::string> faults = find_damage(folder, world);
    if (!faults.empty()) {
      bad.push_back(format("{} is damaged: {}", folder.string(), join(faults, "\n    ")));
      continue;
    }
    together(world, [&]() -> std::string {
      if (world.rank() == 0) go_back(checkpoints, mine[next]);
      return "";
    });
    return folder;
  }
}

}  // namespace voltapile
