// Will the plan fit, and if not, what would make it fit?
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "voltapile/deck/hardware.hpp"
#include "voltapile/plan/plan.hpp"

namespace voltapile {

// Memory of the machine on which a job is about to start.
struct HostMemory {
  size_t available = 0;
  int ranks = 1;  // of the job, on this machine
};

// Device memory of a pipeline rank as the driver will report it, where `hardware` knows what that
// holds besides; else the plan's alone.
size_t bytes_in_use(const Plan& plan, const Hardware& hardware, int pp_rank);

// Throws Error(does_not_fit) when a kind of rank needs more than memory.device_limit, the driver's
// own memory included where `hardware` knows it; or all ranks of a host together more than
// memory.host_limit or, where the deck sets none, than `here` has. Names the rank, both figures and
// the largest parts, then up to three changes of the deck that would make it fit.
void require_fit(const Plan& plan, const Hardware& hardware = {},
                 const std::optional<HostMemory>& here = std::nullopt);

struct Remedy {
  std::string change;       // "memory.optimizer = \"host\""
  double step_seconds = 0;  // forecast
};
// The changes of up to three keys that make `plan` fit, cheapest first, three at most; none that
// includes another one's keys, and of those that differ in a number alone the mildest of the
// fastest.
std::vector<Remedy> remedies(const Plan& plan, const Hardware& hardware,
                             const std::optional<HostMemory>& here);

}  // namespace voltapile
