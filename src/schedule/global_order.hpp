// One order of all compute instructions and transfers of a step, from which every rank's program is
// cut.
#pragma once
#include <vector>

#include "voltapile/schedule/schedule.hpp"

namespace voltapile {

struct Placed {
  int rank;
  Instruction instruction;
};

// Plays the compute programs with nominal costs and unbounded buffers, and lists what happened in
// time: a compute instruction when it ends, a transfer (the send, then its receive) when it begins.
// A receive so comes before the instruction during which it arrives: its buffer is not one that
// this instruction still uses.
// Throws Error(bad_input) where the programs wait for each other for ever, saying for what.
std::vector<Placed> global_order(const std::vector<Program>& compute, const ScheduleShape& shape,
                                 bool recompute);

}  // namespace voltapile
