// The engine executes one Program through the two seams. It knows no schedule: for every
// instruction it waits for the operands that schedule::operands() names, enqueues the work on the
// instruction's lane, and goes on.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/data/data.hpp"
#include "voltapile/device/kernels.hpp"
#include "voltapile/model/chunk_model.hpp"
#include "voltapile/optim/optim.hpp"
#include "voltapile/plan/plan.hpp"
#include "voltapile/schedule/timeline.hpp"
#include "voltapile/tensor/arena.hpp"
#include "voltapile/trace/summary.hpp"

namespace voltapile {

// Everything of one rank that outlives a step: where it stands on the mesh, its device, its links,
// and the state of its chunks (weights, gradients, master weights, moments) in the training arena.
class RankContext {
 public:
  RankContext(const Plan& plan, Device& device, Links& links, int rank);

  const Plan& plan() const { return plan_; }
  Device& device() const { return device_; }
  Links& links() const { return links_; }
  Coord coord() const { return coord_; }
  const Arena& arena() const { return arena_; }
  const std::vector<int>& chunks() const { return chunks_; }  // held by this rank, ascending
  bool has_first_chunk() const;
  bool has_last_chunk() const;

  TensorView weights(int chunk) const;    // (flat elements) working
  TensorView gradients(int chunk) const;  // (flat elements) acc
  TensorView reduced(
      int chunk) const;                // (shard elements) gradients as they leave for the optimizer
  Range shard(int chunk) const;        // of this data rank
  TensorView master(int chunk) const;  // (shard elements) acc, as m and v
  TensorView m(int chunk) const;
  TensorView v(int chunk) const;

 private:
  TensorView state_part(int chunk, int part) const;

  const Plan& plan_;
  Device& device_;
  Links& links_;
  Coord coord_;
  std::vector<int> chunks_;
  Arena arena_;
};

// What a step left behind, read once the step has been waited for.
struct StepResult {
  StepState state;
  SummaryTimers timers;  // of the step before it, the last one whose lanes have all ended
  bool stop = false;     // some rank asked to stop: every rank sees it at the same step
};

class Engine {
 public:
  // kRing steps are in flight at most: their inputs, results and timers have places of their own.
  static constexpr int kRing = 4;

  Engine(RankContext& context, const Phase& phase);
  ~Engine();

  // The state before the first step: scale and counters as a new run or a checkpoint has them.
  void set_state(const StepState& state);
  // Enqueues one step; `batch` (host memory) stays untouched until its result has been waited for.
  // `stop`: this rank's vote to end the run after this step (a signal, the time limit).
  void issue(const StepInputs& inputs, const BatchMemory& batch, bool stop);
  // Blocks until the oldest step issued and not yet waited for has its norm; the host's one wait a
  // step.
  StepResult wait_for_step();
  // Evaluation: `valid` samples of this data rank's batch count.
  void issue_evaluation(const BatchMemory& batch, int64_t valid);
  struct Totals {
    double loss = 0, top1 = 0, top5 = 0;
  };
  // Waits, sums over the world (collective) and starts again from zero.
  Totals take_totals();
  // Timers of the last step, which no result holds; after drain().
  SummaryTimers last_timers() const;
  // When each instruction of one training step ran, in program order, on now_seconds()'s clock.
  // `step` is the one before the last that was waited for, or, after drain(), that one.
  std::vector<Span> spans(int64_t step) const;
  // Waits until every lane is idle.
  void drain();
  // State after the last step that was waited for: what a checkpoint keeps.
  StepState next_state() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace voltapile
