// The instructions of all ranks seen together: what several ranks do at once is one event.
#pragma once
#include <string>
#include <vector>

#include "voltapile/schedule/schedule.hpp"

namespace voltapile {

// A place in the programs: programs[rank][position].
struct ProgramPlace {
  int rank;
  int position;
};
// A transfer is its send and its receive; a norm is that of every rank; all else stands alone.
struct ProgramEvent {
  std::vector<ProgramPlace> members;
};
struct Events {
  std::vector<ProgramEvent> list;
  std::vector<std::vector<int>> of;  // of[rank][position]: index into `list`
};

// Throws Error(failure) when the two ends of a directed edge list different transfers, or ranks
// differ in their number of norms.
Events match_events(const std::vector<Program>& programs, const ScheduleShape& shape);

// "rank 1, position 4, forward(1, 0)"
std::string show(const std::vector<Program>& programs, ProgramPlace place);

// Evaluation programs have no backward and no end of a step.
bool is_training(const std::vector<Program>& programs);

}  // namespace voltapile
