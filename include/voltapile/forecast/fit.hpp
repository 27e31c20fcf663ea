// Will the plan fit?
#pragma once
#include "voltapile/plan/plan.hpp"

namespace voltapile {

// Throws Error(does_not_fit) when a kind of rank needs more than memory.device_limit, or all ranks
// of a host together more than memory.host_limit, naming the rank, both figures and the largest
// parts. Limits that the deck does not set are not checked.
void require_fit(const Plan& plan);

}  // namespace voltapile
