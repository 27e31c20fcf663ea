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

// Compute-lane idle time of a step; mean over ranks. Each idle moment is one of two things:
// * exposed optimizer: the rank's next instruction has its input and waits for its weights, for an
//   update or for a copy or gather that brings them; or its input is not there because the rank
//   that makes it waits for weights at that moment, and so on along the pipeline;
// * all else, such as filling and draining the pipeline, and transfers.
// So an update that ends before the input comes is not exposed.
struct Bubble {
  double fraction = 0;           // of first forward to last backward: all else
  double exposed_optimizer = 0;  // of last backward of the step before to last backward
  std::vector<double> per_rank;  // of `fraction`
};
// `timeline` is of one pipeline, and holds the step before `step` too where that updated something.
Bubble bubble(const Timeline& timeline, int ranks, int64_t step);

}  // namespace voltapile
