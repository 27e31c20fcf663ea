// Passes that bring weights and activations from where they live between uses, and take them back.
#pragma once
#include "voltapile/schedule/schedule.hpp"

namespace voltapile {

// One chunk's or the whole rank's instruction without a micro-batch.
constexpr Instruction closing(Op op, Lane lane, int chunk = -1) {
  return {op, lane, static_cast<int16_t>(chunk), -1};
}

// A chunk's weights come for each run of its compute instructions, while the run before it is at
// work.
Program with_weights_on_demand(const Program& program, const Homes& homes, bool gather_shards);

// What a forward saves is stored behind it, and fetched before its backward: on the compute lane
// right there, from host memory while the backward before it is at work.
Program with_stores(const Program& program, const Homes& homes);

}  // namespace voltapile
