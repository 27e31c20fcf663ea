// Private to report: simulate()'s costs from a trace.
#pragma once
#include <vector>

#include "voltapile/plan/plan.hpp"
#include "voltapile/schedule/schedule.hpp"
#include "voltapile/trace/trace_file.hpp"

namespace voltapile {

struct MeasuredCosts {
  // Seconds. `of` gives each instruction of the program its own time, the median over the trace's
  // steps and the data and tensor ranks. What several ranks do together lasts from when the last
  // of them begins, so that waiting for a peer is no part of it: a transfer until it is received,
  // reductions and norm as long as they took on the rank that took least.
  // The other costs are means over chunks and micro-batches, for bubble_formula().
  Costs costs;
  std::vector<double> chunk_seconds;  // compute of one micro-batch, forward to weight gradients
};
MeasuredCosts measured_costs(const Trace& trace, const Plan& plan);
// Which memory holds a value in training.
MemoryOf memory_of(const Plan& plan);

}  // namespace voltapile
