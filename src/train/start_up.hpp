// Private to train: before anything is built on it, all ranks make sure that they have the same
// program, deck and plan, and show what else differs.
#pragma once
#include "voltapile/comm/communicator.hpp"
#include "voltapile/device/device.hpp"
#include "voltapile/plan/plan.hpp"
#include "voltapile/watch/fingerprint.hpp"

namespace voltapile {

// Collective. `more`: what the caller knows besides. SharedError(bad_input) where program, deck or
// plan differ, with the keys of the deck.
void compare_programs(const Plan& plan, Communicator& world, std::vector<Fact> more);
// Collective. Of device and machine.
void compare_machines(const Plan& plan, Communicator& world, Device& device);

}  // namespace voltapile
