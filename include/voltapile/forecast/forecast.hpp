// What a plan will cost, before it runs: FLOPs, bytes, bubble, memory; and the page that `voltapile
// plan` prints.
#pragma once
#include <string>
#include <vector>

#include "voltapile/deck/hardware.hpp"
#include "voltapile/plan/plan.hpp"

namespace voltapile {

struct Forecast {
  double parameters = 0;
  double model_flops_per_step = 0;     // 6 N T + attention; recomputation left out
  double hardware_flops_per_step = 0;  // recomputation included
  double bubble = 0;                   // simulated, costs by FLOPs
  double bubble_formula = -1;          // -1: none for this schedule
  // Heaviest rank: what is kept from forward to backward (saved tensors, in 8 bits or on the host
  // too, and boundary activations) and the buffer in which a segment is rebuilt.
  double activation_bytes = 0;
  double activation_bytes_without_recompute = 0;
};
Forecast forecast(const Plan& plan);

// Seconds of a step in the long run, from FLOPs, bytes and the rates of `hardware`: what bounds it
// and what a change costs, not what a clock will show.
double step_seconds(const Plan& plan, const Hardware& hardware);

// Costs of simulate() in proportion to FLOPs: 1 is the forward of a mean chunk. Transfers,
// reductions and updates take no time.
Costs costs_by_flops(const Plan& plan);

// The whole text of `voltapile plan`: mesh, chunks, shards, schedule picture, bubble, parameters,
// FLOPs, and memory by name for each kind of rank, with the limits of the deck beside it. No line
// is wider than `columns` (at least 80) where names allow it.
std::string describe(const Plan& plan, const Hardware& hardware = {}, int columns = 100);

// Homes and stores that the deck may ask for but this version cannot train yet; one message each,
// naming the key and the fix.
std::vector<std::string> not_trainable(const Plan& plan);

}  // namespace voltapile
