// One stage of work that ranks do together and that may fail on some of them.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "voltapile/comm/communicator.hpp"

namespace voltapile {

// Runs this rank's part of a stage. All ranks learn every answer, and every fault: one rank's fault
// ends the stage on all of them with the same Error, that of the lowest rank, and nobody waits for
// a rank that gave up. Collective.
std::vector<std::string> together(Communicator& world, const std::function<std::string()>& part);

}  // namespace voltapile
