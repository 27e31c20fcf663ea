// Private to report: simulate()'s costs from a trace.
#pragma once
#include <vector>

#include "voltapile/plan/plan.hpp"
#include "voltapile/schedule/schedule.hpp"
#include "voltapile/trace/trace_file.hpp"

namespace voltapile {

struct MeasuredCosts {
  Costs costs;                        // seconds
  std::vector<double> chunk_seconds;  // compute of one micro-batch, forward to weight gradients
};
// Compute and update: means, and a weight for each chunk. What waits for a peer (transfers,
// reductions, norm): the tenth percentile, which holds the least of waiting.
MeasuredCosts measured_costs(const Trace& trace, const Plan& plan);
// Which memory holds a value in training.
MemoryOf memory_of(const Plan& plan);

}  // namespace voltapile
