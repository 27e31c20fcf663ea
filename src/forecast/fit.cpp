#include "voltapile/forecast/fit.hpp"

#include <algorithm>

#include "voltapile/base/error.hpp"
#include "voltapile/base/units.hpp"

namespace voltapile {

namespace {

// The three heaviest lines of one home, for the message.
std::string heaviest(std::vector<MemoryLine> lines, Home home) {
  std::erase_if(lines, [&](const MemoryLine& line) { return line.home != home; });
  std::sort(lines.begin(), lines.end(),
            [](const MemoryLine& a, const MemoryLine& b) { return a.bytes > b.bytes; });
  if (lines.size() > 3) lines.resize(3);
  std::vector<std::string> texts;
  for (const MemoryLine& line : lines) {
    texts.push_back(format("{} {}", line.name, show_bytes(static_cast<double>(line.bytes))));
  }
  return join(texts, ", ");
}

}  // namespace

void require_fit(const Plan& plan) {
  std::vector<std::string> faults;
  size_t all_hosts = 0;
  int heaviest_rank = 0;
  for (int pp = 0; pp < plan.mesh.pp; ++pp) {
    const size_t on_device = plan.device_bytes(pp), on_host = plan.bytes_at(Home::host, pp);
    if (on_host > plan.bytes_at(Home::host, heaviest_rank)) heaviest_rank = pp;
    all_hosts += on_host * static_cast<size_t>(plan.mesh.dp * plan.mesh.tp);
    const auto limit = plan.deck.memory.device_limit_bytes;
    if (!limit || on_device <= static_cast<size_t>(*limit)) continue;
    faults.push_back(format(
        "ranks at pp{} need {} of device memory, more than memory.device_limit = {} (heaviest: {})",
        pp, show_bytes(static_cast<double>(on_device)), show_bytes(static_cast<double>(*limit)),
        heaviest(plan.memory(pp), Home::device)));
  }
  // All ranks are taken to share one host: the deck's limit is per host, and how ranks spread is
  // not known here.
  const auto limit = plan.deck.memory.host_limit_bytes;
  if (limit && all_hosts > static_cast<size_t>(*limit)) {
    faults.push_back(
        format("all ranks together need {} of host memory, more than memory.host_limit = {} "
               "(heaviest: {})",
               show_bytes(static_cast<double>(all_hosts)), show_bytes(static_cast<double>(*limit)),
               heaviest(plan.memory(heaviest_rank), Home::host)));
  }
  if (faults.empty()) return;
  faults.push_back(
      "less memory: memory.recompute = \"layers\", a smaller batch.micro, more parallel.pipeline "
      "or "
      "parallel.tensor, optimizer.zero = 1 with parallel.data > 1; `voltapile plan` shows each "
      "part");
  throw Error(ExitCode::does_not_fit, "it will not fit:\n  " + join(faults, "\n  "));
}

}  // namespace voltapile
