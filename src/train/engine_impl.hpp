// Private to the engine: the program bound to memory, and what each instruction enqueues.
#pragma once
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>

#include "voltapile/train/engine.hpp"

namespace voltapile {

inline constexpr int kVoteSlot = NormSlots::count;  // of Impl::summed

// Votes as one number, which is summed over the ranks: each kind counts in a range of its own, and
// the sum of up to 2^26 ranks' is exact.
inline constexpr double kSaveVote = 0x1p26;
inline double as_number(const Votes& votes) {
  return (votes.stop ? 1 : 0) + (votes.save ? kSaveVote : 0);
}
inline Votes votes_of(double sum) {
  return {.stop = std::fmod(sum, kSaveVote) > 0, .save = sum >= kSaveVote};
}
// What first_bad holds while every gradient was finite.
inline constexpr int32_t kNoBadParameter = std::numeric_limits<int32_t>::max();

// The order of work on one slot, as tickets of the lanes: who wrote it last and who has read it
// since. 0 = nobody.
using Tickets = std::array<uint64_t, kLaneCount>;
struct SlotOrder {
  Tickets written{}, read{};
};

struct BoundInstruction {
  Instruction instruction;
  std::vector<int> reads, writes;  // indices into Engine::Impl::order
  bool first_backward = false;     // of its chunk in this step: gradients start from zero
};

// What one chunk needs besides its memory.
struct ChunkParts {
  std::unique_ptr<ChunkModel> model;
  std::vector<UpdateRun> runs;  // relative to the shard, as all of these
  std::vector<Range> updated;   // the same, joined
  std::vector<NormPiece> pieces;
  std::vector<Range> partial;  // gradients to be summed over the tensor axis
  StoredLayout stored;         // where activations are not left as they are
};

// What finish_norm leaves in a state: all but the inputs, which are copied there when a step is
// issued, perhaps at the same time.
inline constexpr size_t kDecidedAt = sizeof(StepInputs);
static_assert(offsetof(StepState, loss_scale) == kDecidedAt);

// When an instruction ran, marked by its lane.
struct Clocked {
  double begin = 0, end = 0;  // 0: not yet
  static bool is_marked(double& mark) {
    return std::atomic_ref<double>(mark).load(std::memory_order_relaxed) != 0;
  }
  static void clear(double& mark) {
    std::atomic_ref<double>(mark).store(0, std::memory_order_relaxed);
  }
};

struct Engine::Impl {
  Impl(RankContext& context, const Phase& phase);

  void bind();
  void issue(const StepInputs* inputs, const BatchMemory& batch, int64_t valid, Votes votes);
  void enqueue(const BoundInstruction& bound, Stream& stream, const BatchMemory& batch,
               int64_t valid, Votes votes);
  void enqueue_once(const BoundInstruction& bound, Stream& stream, const BatchMemory& batch,
                    int64_t valid, Votes votes);
  uint64_t work_key(const BoundInstruction& bound) const;
  void load_batch(int chunk, int micro, const BatchMemory& batch, Stream& stream);
  void exchange(const Instruction& instruction, Stream& stream);
  int64_t rank_samples() const;
  void show_next_step();
  void add_clocks(size_t ring, SummaryTimers& timers) const;
  void reduce_gradients(int chunk, Stream& stream);
  void norm(Stream& stream, Votes votes);
  void update(int chunk, Lane lane, Stream& stream);
  void update_on_host(int chunk, size_t ring);
  StepState* host_update(int64_t step) const;
  void gather_weights(int chunk, Stream& stream);
  void fetch_weights(int chunk, Stream& stream);
  void offload_gradients(int chunk, Stream& stream);
  void store_activation(int chunk, int micro, Stream& stream);
  void fetch_activation(int chunk, int micro, Stream& stream);
  TensorView stored_source(const StoredTensor& piece, int chunk, int micro) const;
  ChunkMemory memory(int chunk, int micro) const;
  MicroStep micro_step(int chunk, int micro, int64_t valid) const;
  TensorView boundary(Value value, int chunk, int micro) const;
  std::byte* place(Value value, int chunk, int micro) const;
  StepState* state(int64_t step) const;
  Clocked& clock_of(size_t instruction, size_t ring) const;

  RankContext& context;
  const Plan& plan;
  const Phase& phase;
  Device& device;
  Kernels& kernels;
  AdamW rules;
  bool training, early_updates;
  std::unique_ptr<Arena> own_arena;  // evaluation's view of the same memory
  const Arena* arena;
  std::vector<ChunkParts> chunks;  // by chunk number; empty for foreign ones
  std::vector<BoundInstruction> program;
  std::vector<Lane> lanes;  // that this rank's program uses
  std::vector<SlotOrder> order;
  mutable std::map<std::vector<int64_t>, uint64_t> work_keys;
  uint64_t first_work_key;  // no two engines share keys
  std::array<Tickets, kLaneCount>
      waited_for{};  // by waiting lane: what it has been made to wait for already

  // host_updates: what finish_norm decided for updates on the host.
  Buffer host_states, host_updates, host_inputs, host_votes, host_ends, host_clocks;
  StepState* states = nullptr;  // kRing of them, on the device
  // On the device. `summed` is what norm adds up over the world: slots, then the ranks' votes.
  // `loss` is this rank's, until norm takes it.
  TensorView slots, summed, first_bad, loss, correct;
  TensorView logits;  // (micro-batches, B, L), where they are kept
  std::array<Event, kRing> step_end;
  int64_t issued = 0, waited = 0, first_step = 0;
  bool shows_lanes = false;
  std::atomic<int64_t> first_shown{0}, end_shown{0};  // steps that lane_states() looks at
};

}  // namespace voltapile
