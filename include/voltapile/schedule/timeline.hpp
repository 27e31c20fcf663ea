// When each instruction ran, predicted by simulate() or measured by the Recorder: compared, printed
// and exported by the same code.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "voltapile/schedule/instruction.hpp"

namespace voltapile {

struct Span {
  int rank = 0;  // pipeline rank in a simulation, world rank in a measurement
  int64_t step = 0;
  Instruction instruction{};
  double begin = 0, end = 0;  // seconds
};

struct Timeline {
  std::vector<Span> spans;
};

// Compute-lane idle time between a step's first forward and last backward, less waits on `update`,
// over that time; mean over ranks. (Exposed optimizer is the part that waits on `update`.)
struct Bubble {
  double fraction = 0, exposed_optimizer = 0;
  std::vector<double> per_rank;
};
Bubble bubble(const Timeline& timeline, int ranks, int64_t step);

}  // namespace voltapile
