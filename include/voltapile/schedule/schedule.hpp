// Builders write compute instructions only; lower() adds the rest; validate() proves that the
// result cannot deadlock; simulate() predicts its time; print and parse round-trip. All pure.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "voltapile/schedule/instruction.hpp"
#include "voltapile/schedule/timeline.hpp"

namespace voltapile {

struct ScheduleShape {
  ChunkTable chunks;
  int micros = 1;              // micro-batches of a step, per data rank
  Homes homes = {};            // lower() inserts what they need; programs of a shape have its homes
  bool early_updates = false;  // updates need not wait for their step's norm
  OperandRules rules(bool training) const { return {true, training, homes, early_updates}; }
};

// Names accepted by build(): "gpipe", "1f1b", "interleaved", "breadth_first", "zero_bubble_h1".
const std::vector<std::string>& schedule_names();

// One compute-only program per pipeline rank (forward, and backward or backward_input +
// backward_weight). Throws Error(bad_input) when the schedule does not exist for this shape, saying
// which shapes it accepts (gpipe, 1f1b and zero_bubble_h1: one chunk per rank, in any placement;
// interleaved: cyclic placement, where the last round may be short; breadth_first: any placement
// that leaves no rank without a chunk). Any number of micro-batches up to 32767.
std::vector<Program> build(std::string_view name, const ScheduleShape& shape);

// Text of a schedule, one line per pipeline rank: "F0.1" = forward of chunk 0, micro 1; "B"
// backward; "I" backward_input; "W" backward_weight; '#' starts a comment. parse_schedule() gives
// line:column in its errors and checks completeness (every chunk and micro once, on its own rank).
std::string print_schedule(const std::vector<Program>& programs);
std::vector<Program> parse_schedule(std::string_view text, const ScheduleShape& shape,
                                    const std::string& path);

struct LowerOptions {
  bool recompute = false;      // insert `recompute` before backward / backward_input
  bool gather_shards = false;  // ZeRO-1: a chunk's weights are gathered from the dp shards
  bool training = true;        // false: evaluation; forward only, no gradients
};
// Compute-only programs in, complete ones out. Adds load_batch (one micro-batch ahead), transfers
// (none between chunks of one rank), recompute, reduce_gradients (after the last backward of a
// chunk), norm, update, gather_weights. Every rank's result is a projection of one global order
// over all lanes. Order of a step's end: reduce_gradients of each chunk as soon as it can, then
// norm, then update (and gather_weights) chunk by chunk in the order in which the next step's
// forward needs them. With shape.early_updates an optimizer on the host begins with a chunk as soon
// as its gradients are there, weights come back behind all updates, and norm is last.
// shape.homes adds: with an optimizer on the host, offload_gradients after reduce_gradients, and
// fetch_weights after update; on nvme, load_state (one chunk ahead) and save_state around update.
// With weights elsewhere than on the device, a chunk's weights come anew for each run of compute
// instructions of that chunk, one run ahead: load_weights (nvme), fetch_weights, gather_weights.
// With activations not kept as they are, store_activation after forward and fetch_activation before
// backward, left out where a backward directly follows its forward.
// Throws Error(bad_input) when the compute programs wait for each other for ever.
std::vector<Program> lower(const std::vector<Program>& compute, const ScheduleShape& shape,
                           const LowerOptions& options);

// The compute-only programs of an evaluation: forward of every chunk and micro.
std::vector<Program> build_forward_only(const ScheduleShape& shape);

// Throws Error(failure) naming rank, position and instruction: an incomplete step, an operand read
// before it is written, an operation on a lane that cannot run it, a communicator (directed edge,
// world) whose order differs between its ranks, and programs that are not projections of one global
// order, in which a send that blocks until received, or a buffer that is reused, could wait in a
// circle. (Ranks of one dp or tp group share a program, so their order agrees by itself.)
void validate(const std::vector<Program>& programs, const ScheduleShape& shape);

// Costs in seconds (or any unit). Per-chunk vectors may be empty (= all 1).
struct Costs {
  double forward = 1, backward_input = 1, backward_weight = 1;  // backward = both
  double recompute = 0;  // of a `recompute`; added to backward where programs have none
  double transfer = 0, reduce = 0, norm = 0, update = 0, gather = 0, load = 0;
  double store = 0;                  // store_activation, and fetch_activation
  double offload = 0;                // offload_gradients, and fetch_weights
  double disk = 0;                   // a chunk's state or weights from or to nvme
  std::vector<double> chunk_weight;  // multiplies compute costs of a chunk
  // Where given, simulate() takes these times instead of all above. A transfer asks for its send.
  std::function<double(const Instruction&)> of;
};
// Which memory of a rank holds a value: equal numbers share it, so they wait for each other; -1 is
// memory of its own.
using MemoryOf = std::function<int(int rank, Value value, int chunk, int micro)>;
// Steady state: `steps` steps issued back to back; the Timeline holds all of them, by step, rank
// and program order. A lane runs its instructions in order, each when its operands allow; a
// transfer occupies pipe_out of one rank and pipe_in of the other for `transfer`. Without `memory`
// there is room for every value. Throws Error(failure) when the programs cannot end.
Timeline simulate(const std::vector<Program>& programs, const ScheduleShape& shape,
                  const Costs& costs, int steps = 1, const MemoryOf& memory = {});

// Of training programs: the third simulated step, to which updates of the steps before reach as in
// any later one.
struct SteadyState {
  double step_seconds = 0;
  Bubble bubble;
};
SteadyState steady_state(const std::vector<Program>& programs, const ScheduleShape& shape,
                         const Costs& costs, const MemoryOf& memory = {});

// (p-1)/(m+p-1) for gpipe and 1f1b, (p-1)/(v m+p-1) for interleaved and breadth_first, and for
// zero_bubble_h1 (p-1)(F+I-W) / (m(F+I+W) + (p-1)(F+I-W)) (Qi et al., "Zero bubble pipeline
// parallelism", 2023), with equal chunks, transfers that take no time, and recomputation (if any)
// as a part of backward: as instructions of its own it fills some of the bubble. Empty for others
// and where it does not hold: fewer micros than ranks with several chunks or a split backward,
// chunks that ranks do not divide, placements that are not cyclic, W above F or I.
std::optional<double> bubble_formula(std::string_view name, const ScheduleShape& shape,
                                     const Costs& costs);

// The compute lanes as a picture: one row per pipeline rank, time to the right, no line wider than
// `columns` (at least 24 are used), a legend below. UTF-8. Numbers are micro-batches, or
// chunk.micro where there is room.
std::string draw(const Timeline& timeline, int ranks, int columns);

}  // namespace voltapile
