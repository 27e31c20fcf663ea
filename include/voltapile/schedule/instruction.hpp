// A program is the list of instructions that one rank issues in one step: plain data.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "voltapile/deck/homes.hpp"

namespace voltapile {

enum class Op : uint8_t {
  load_batch,  // pictures (first chunk) or labels (last chunk) of a micro-batch to the device
  forward,
  recompute,        // rebuild the saved tensors of a chunk's last segment before its backward
  backward,         // input and weight gradients
  backward_input,   // split backward: what the previous chunk waits for
  backward_weight,  // split backward: the rest
  send_activation,
  receive_activation,  // `chunk` is the one that the activation enters
  send_gradient,
  receive_gradient,  // `chunk` is the one whose input the gradient belongs to (same numbering)
  store_activation,
  fetch_activation,   // saved tensors and the input of a chunk to and from where they wait
  load_weights,       // from nvme to host memory
  save_weights,       // and back
  fetch_weights,      // a rank's shard of a chunk's weights from host memory to the device
  gather_weights,     // the whole chunk's from the dp shards
  reduce_gradients,   // tp all-reduce of replicated parameters, dp reduce-scatter, rounding to the
                      // stored type, their squares and whether all are finite
  offload_gradients,  // reduced gradients to host memory
  norm,               // global gradient norm, loss and overflow vote
  load_state,         // master weights and moments from nvme to host memory
  update,             // AdamW on a chunk's shard, on the lane of its home
  save_state,         // and back
  snapshot,           // hand a chunk's state to the checkpoint writer
};
inline constexpr int kOpCount = static_cast<int>(Op::snapshot) + 1;

// Batches have a lane of their own: on h2d they would wait for weights that the host still updates.
enum class Lane : uint8_t { compute, pipe_in, pipe_out, dp, input, h2d, d2h, host, disk };
inline constexpr int kLaneCount = static_cast<int>(Lane::disk) + 1;

std::string_view name_of(Op op);
std::string_view name_of(Lane lane);

struct Instruction {
  Op op;
  Lane lane;
  int16_t chunk = -1,
          micro = -1;  // -1: not of a chunk (norm) or not of a micro-batch (update, ...)
  bool operator==(const Instruction&) const = default;
};
using Program = std::vector<Instruction>;

// Which rank of the pipeline axis holds each chunk. Chunks are numbered along the model.
struct ChunkTable {
  int ranks = 1;
  std::vector<int> rank_of;  // size = number of chunks
  int chunks() const { return static_cast<int>(rank_of.size()); }
  int last() const { return chunks() - 1; }
};
ChunkTable cyclic_chunks(int ranks, int chunks_per_rank);

// What an instruction reads and writes, on its own rank. The engine's waits, buffer liveness,
// validate() and simulate() are all derived from this one function.
enum class Value : uint8_t {
  pictures,        // (micro)         input pixels of the first chunk
  labels,          // (micro)         targets of the last chunk
  activation,      // (chunk, micro)  boundary activation entering `chunk`; chunk 0 has none
  gradient,        // (chunk, micro)  its gradient
  saved,           // (chunk, micro)  kept from forward to backward
  stored,          // (chunk, micro)  saved and activation while they wait for backward, in 8 bits
                   //                 or in host memory
  deferred,        // (chunk, micro)  kept from backward_input to backward_weight
  weights,         // (chunk)         working-type parameters on the device
  host_weights,    // (chunk)         a rank's shard of them in host memory
  gradients,       // (chunk)         accumulated gradients
  reduced,         // (chunk)         gradients as they leave for the optimizer, on the device
  host_gradients,  // (chunk)         and in host memory
  state,           // (chunk)         master weights and moments
  norm_sums,       // ()              squares and the vote of the chunks reduced so far; `norm`
                   //                 takes and clears them
  step_state,      // ()              norm, clip factor, loss scale, ...
  multiplier,      // ()              the part of it that early updates read: norm leaves it to the
                   //                 next step's
  workspace,       // ()              temporaries of the compute lane
  loss,            // ()              summed losses and counts; `norm` takes and clears them
};
inline constexpr int kValueCount = static_cast<int>(Value::loss) + 1;
std::string_view name_of(Value value);

enum class Access : uint8_t { read, write, update };  // update = read and write
struct Operand {
  Value value;
  int16_t chunk = -1, micro = -1;
  Access access;
};
// What of the run changes operands.
struct OperandRules {
  bool keep_input = true;  // backward reads the chunk's input activation again (recomputation, and
                           // weight gradients)
  bool training = true;    // false: forward keeps nothing (no `saved`)
  Homes homes = {};
  bool early_updates = false;  // an update clips by the norm of the step before, not of its own
};
// Values that outlive a step: every rank has them before its first instruction.
bool is_persistent(Value value, const Homes& homes = {});
// Each value is named once. A write begins a new life of its value. `gradients` of a chunk lives
// from its first backward instruction of a step, which finds it cleared (whoever executes the
// program clears it), to reduce_gradients.
// `update` leaves weights and state as they are when the step is skipped, and with ZeRO-1 writes a
// shard only: so it updates them. The first chunk's pictures are read again by its backward (the
// patch embedding's weight gradient).
std::vector<Operand> operands(const Instruction& instruction, const ChunkTable& chunks,
                              const OperandRules& rules = {});

}  // namespace voltapile
