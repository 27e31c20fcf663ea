// What one instruction costs: FLOPs of its matrix products, and bytes that it moves. Pure.
#pragma once
#include <cstdint>

#include "voltapile/plan/plan.hpp"

namespace voltapile {

// Of one micro-batch in one chunk, all tensor ranks together.
struct ChunkFlops {
  Flops flops;
  double recompute = 0;  // of Op::recompute
  double rebuilt = 0;    // attention that backward's input part computes anew: 8-bit activations
  double model() const { return flops.forward + flops.backward_input + flops.backward_weight; }
  double hardware() const { return model() + recompute + rebuilt; }
};
ChunkFlops flops_of(const Plan& plan, const Chunk& chunk);

struct InstructionCost {
  double flops = 0;  // of one tensor rank
  // Sent or received (a collective of several data ranks: the tensor's own bytes), copied to or
  // from the host or a disk, or, of update, read and written; 0 of the model's layers.
  int64_t bytes = 0;
};
// Of a training step's instruction, on one rank.
InstructionCost cost_of(const Plan& plan, const Instruction& instruction);

}  // namespace voltapile
