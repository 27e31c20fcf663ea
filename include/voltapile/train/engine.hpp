// The engine executes one Program through the two seams. It knows no schedule: for every
// instruction it waits for the operands that schedule::operands() names, enqueues the work on the
// instruction's lane, and goes on.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "voltapile/base/thread_pool.hpp"
#include "voltapile/comm/communicator.hpp"
#include "voltapile/data/data.hpp"
#include "voltapile/device/host/adamw.hpp"
#include "voltapile/device/host/disk.hpp"
#include "voltapile/device/kernels.hpp"
#include "voltapile/model/chunk_model.hpp"
#include "voltapile/optim/optim.hpp"
#include "voltapile/plan/plan.hpp"
#include "voltapile/schedule/timeline.hpp"
#include "voltapile/tensor/arena.hpp"
#include "voltapile/trace/summary.hpp"
#include "voltapile/train/state_hold.hpp"
#include "voltapile/watch/rank_state.hpp"

namespace voltapile {

// What a checkpoint knows of a chunk's shard, (shard elements) f32 each; null: none.
template <class T>
struct ShardState {
  T *master = nullptr, *m = nullptr, *v = nullptr, *ema = nullptr;
};

// Everything of one rank that outlives a step: where it stands on the mesh, its device, its links,
// and the state of its chunks (weights, gradients, master weights, moments) in the training arena.
class RankContext {
 public:
  // `threads` of the host update what lives there.
  RankContext(const Plan& plan, Device& device, Links& links, int rank, int threads = 1);

  const Plan& plan() const { return plan_; }
  Device& device() const { return device_; }
  Links& links() const { return links_; }
  Coord coord() const { return coord_; }
  const Arena& arena() const { return arena_; }
  const std::vector<int>& chunks() const { return chunks_; }  // held by this rank, ascending
  bool has_first_chunk() const;
  bool has_last_chunk() const;

  Range shard(int chunk) const;           // of this data rank
  TensorView weights(int chunk) const;    // (flat elements) working, on the device
  TensorView gradients(int chunk) const;  // (flat elements) acc
  // (shard elements) gradients as they leave for the optimizer, on the device
  TensorView reduced(int chunk) const;
  TensorView host_weights(int chunk) const;    // (shard elements) working
  TensorView host_gradients(int chunk) const;  // (shard elements) as `reduced`
  // Where the optimizer computes; empty where the state has no such part.
  TensorView state(int chunk, StatePart part) const;
  host::Moments8 moments(int chunk) const;
  ThreadPool& host_pool() const { return *host_pool_; }

  // Between steps, every lane idle: weights (working) and state (f32) of a part of a chunk's flat
  // buffer to their homes, from memory of allocate_host. Of weights that live on the host only
  // parts of the shard are put; of state no others, whole blocks of 8-bit moments but at its end.
  void put_weights(int chunk, const Range& part, const std::byte* data);
  void put_state(int chunk, const Range& part, const ShardState<const float>& from);
  // After the last part: what lives on nvme goes there.
  void keep(int chunk);
  // This data rank's shard alone, (shard elements) working; collective over the data axis, whose
  // other ranks put theirs.
  void put_weight_shard(int chunk, const std::byte* data);
  // The shard's state from its home.
  void get_state(int chunk, const ShardState<float>& into) const;
  // Whatever of a chunk's weights lives elsewhere, to its slot on the device, and of its state to
  // host memory: until the next chunk. Collective over the data axis.
  void bring(int chunk) const;
  // Bytes of a chunk's state at its home on the host or on nvme, from `offset` of its
  // state_layout() on. From any one thread, while no lane changes that chunk's.
  void read_state(int chunk, size_t offset, std::span<std::byte> into) const;
  // Whoever changes a chunk's state at its home while steps run waits here first.
  StateHold& hold() const { return hold_; }

  // Between a chunk's place on nvme and its slots in host memory. Block; for the disk lane.
  void load_state(int chunk) const;
  void save_state(int chunk) const;
  void load_weights(int chunk) const;
  void save_weights(int chunk) const;

 private:
  struct OnDisk {
    size_t state = 0, weights = 0;  // offsets
  };

  TensorView whole_state(int chunk) const;  // all parts, bytes
  host::DiskFile& disk() const;

  const Plan& plan_;
  Device& device_;
  Links& links_;
  Coord coord_;
  std::vector<int> chunks_;
  std::unique_ptr<ThreadPool> host_pool_;
  Arena arena_;
  std::vector<OnDisk> on_disk_;  // by chunk
  size_t disk_bytes_ = 0;
  mutable std::unique_ptr<host::DiskFile> disk_;  // made when it is first needed
  mutable StateHold hold_;
};

// What a rank asks of all; every rank sees at the same step what some rank asked for.
struct Votes {
  bool stop = false;  // end the run after this step: a signal, the time limit
  bool save = false;  // a checkpoint
};

// What a step left behind, read once the step has been waited for.
struct StepResult {
  StepState state;
  double ended = 0;  // seconds on the clock of now_seconds(): when its norm was there, on all ranks
  SummaryTimers timers;  // of the step before it, the last one whose lanes have all ended
  Votes votes;           // all ranks'
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
  // `votes`: this rank's.
  void issue(const StepInputs& inputs, const BatchMemory& batch, const Votes& votes);
  // Blocks until the oldest step issued and not yet waited for has its norm; the host's one wait a
  // step.
  StepResult wait_for_step();
  // Evaluation: `valid` samples of this data rank's batch count.
  void issue_evaluation(const BatchMemory& batch, int64_t valid);
  // From now on each step of an evaluation leaves the head's output in `logits`, memory of the
  // device: (micro-batches, B, L) f32. Ranks without the last chunk leave nothing.
  void keep_logits(TensorView logits);
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
  // What the lanes are at: for each that has work, its first instruction that has not ended. From
  // any thread, at any time, once it has been told to keep them; a dry device has no such memory.
  void keep_lane_states();
  std::vector<LaneState> lane_states() const;
  // Runs the forward pass of a chunk of this rank twice, on what the last step has left in its
  // input; whether all bits that it leaves are the same. Every step must have been waited for; the
  // tensor ranks of a line call it together.
  bool repeats(int chunk);
  // State after the last step that was waited for: what a checkpoint keeps.
  StepState next_state() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace voltapile
