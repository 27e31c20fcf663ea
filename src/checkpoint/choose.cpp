#include <algorithm>
#include <set>

#include "voltapile/checkpoint/checkpoint.hpp"

#include "folder.hpp"
#include "index.hpp"
#include "shard_faults.hpp"
#include "together.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> faults_of_share(const fs::path& checkpoint, const Communicator& world) {
  std::vector<std::string> faults;
  try {
    const Index index = open_index(checkpoint);
    for (size_t i = static_cast<size_t>(world.rank()); i < index.shards.size();
         i += static_cast<size_t>(world.size())) {
      const std::string fault = shard_fault(checkpoint, index, i);
      if (!fault.empty()) faults.push_back(fault);
    }
  } catch (const std::exception& error) { faults.emplace_back(error.what()); }
  return faults;
}

// Candidates of rank 0, the best first: what `latest` names, then the others from the highest step
// down. A `latest` that names nothing is the first fault.
struct Candidates {
  std::vector<fs::path> folders;
  std::string fault;
};
Candidates candidates_in(const fs::path& checkpoints) {
  Candidates found;
  try {
    const auto latest = latest_checkpoint(checkpoints);
    if (!latest) return found;
    found.folders.push_back(*latest);
  } catch (const Error& error) { found.fault = error.what(); }
  std::vector<int64_t> steps = whole_steps(checkpoints);
  std::reverse(steps.begin(), steps.end());
  for (const int64_t step : steps) {
    const fs::path folder = checkpoints / step_name(step);
    if (found.folders.empty() || found.folders.front() != folder) found.folders.push_back(folder);
  }
  return found;
}

}  // namespace

std::vector<std::string> find_damage(const fs::path& checkpoint, Communicator& world) {
  const std::vector<std::string> answers =
      together(world, [&] { return join(faults_of_share(checkpoint, world), "\n"); });
  std::vector<std::string> faults;
  std::set<std::string> seen;  // a damaged index is every rank's fault
  for (const std::string& answer : answers) {
    if (!answer.empty() && seen.insert(answer).second) faults.push_back(answer);
  }
  return faults;
}

std::optional<Chosen> choose_checkpoint(const fs::path& checkpoints, Communicator& world,
                                        OnDamage on_damage) {
  Candidates mine;
  // All go by what the first rank sees.
  const std::string fault = together(world, [&] {
                              if (world.rank() == 0) mine = candidates_in(checkpoints);
                              return mine.fault;
                            }).front();
  std::vector<std::string> bad;
  if (!fault.empty()) bad.push_back(fault);
  for (size_t next = 0; bad.empty() || on_damage == OnDamage::fall_back; ++next) {
    const fs::path folder = together(world, [&]() -> std::string {
                              return next < mine.folders.size() ? mine.folders[next].string() : "";
                            }).front();
    if (folder.empty() && bad.empty()) return std::nullopt;
    if (folder.empty()) {
      throw Error(ExitCode::bad_data, format("{}: no checkpoint there is good:\n  {}",
                                             checkpoints.string(), join(bad, "\n  ")));
    }
    const std::vector<std::string> faults = find_damage(folder, world);
    if (faults.empty()) {
      Chosen chosen{folder, {}, std::move(bad)};
      together(world, [&]() -> std::string {
        chosen.state = read_run_state(folder);
        return "";
      });
      return chosen;
    }
    bad.push_back(format("{} is damaged: {}", folder.string(), join(faults, "\n    ")));
  }
  throw Error(ExitCode::bad_data,
              format("{}\ncheckpoint.fallback = true continues from the newest good one",
                     join(bad, "\n  ")));
}

}  // namespace voltapile
