// The plan: mesh + chunk table + shards + programs + buffers, computed from a deck, identical on
// every rank. Pure.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "voltapile/architecture/architecture.hpp"
#include "voltapile/deck/deck.hpp"
#include "voltapile/mesh/mesh.hpp"
#include "voltapile/schedule/schedule.hpp"

namespace voltapile {

struct Chunk {
  int first_layer = 0, end_layer = 0;  // of Architecture::layers
  int rank = 0;                        // pipeline rank
  int segment_layers = 0;  // recomputation: layers per segment (effective k); 0 = no recomputation
  FlatLayout parameters;   // the local flat buffer, padded so that dp divides it
};

// Values are put into slots by liveness: a pool per kind of value, a slot holds one value at a
// time. A slot is reused in program order; whoever executes lanes asynchronously waits for the
// accesses of the value that a slot held before. A value may live several times in a step (weights
// that are fetched twice): it has one slot for all its lives. Values that several lanes touch
// (boundary tensors, gradients, batches) are double-buffered, so that such waits are short: a slot
// rests until another of its pool has died.
struct ValuePool {
  Value value{};
  Value stored_in{};               // the pool whose slots these are: its own, or `gradients` for
                                   // gradients reduced in place, or `host_gradients` for weights
  Home home = Home::device;        // device or host
  std::vector<size_t> slot_bytes;  // one entry a slot: multiples of 256, on the host of 4096
  // slot of (chunk, micro), -1 where this rank never holds it. Index: (chunk + 1) * (micros + 1) +
  // (micro + 1).
  std::vector<int> slot_of;
};
struct BufferPlan {              // of one pipeline rank
  std::vector<ValuePool> pools;  // indexed by Value
  int micros = 0;
  const ValuePool& pool(Value value) const { return pools[static_cast<size_t>(value)]; }
  int slot(Value value, int chunk, int micro) const {
    const auto& table = pool(value).slot_of;
    const auto index = static_cast<size_t>((chunk + 1) * (micros + 1) + (micro + 1));
    return index < table.size() ? table[index] : -1;
  }
  size_t bytes(Value value) const;  // of all its slots; 0 where it is stored in another pool
};

// Programs and buffers for one purpose: training, or evaluation.
struct Phase {
  bool training = true;
  ScheduleShape shape;
  Sizes sizes;                      // sizes.micro is this phase's samples per micro-batch
  std::vector<Program> programs;    // by pipeline rank
  std::vector<BufferPlan> buffers;  // by pipeline rank
  int64_t samples_per_step = 0;     // over all data ranks
};

// One line of the memory table: what a kind of rank holds, by name.
struct MemoryLine {
  std::string name;
  size_t bytes = 0;
  Home home = Home::device;
};

struct Plan {
  // Resolved: parallel.sequence, memory.gradients and eval.batch are not automatic any more.
  Deck deck;
  Mesh mesh;
  Architecture architecture;
  std::vector<Chunk> chunks;
  // Evaluation runs between training steps in the same memory: both phases have the same slots, so
  // an Arena made for one serves the other.
  Phase train, eval;
  DType gradient_store = DType::f32;  // what memory.gradients became
  // Gradients are reduced where they were accumulated, so `reduced` has no memory of its own and a
  // chunk's `gradients` slot is taken until they have left: where the optimizer is elsewhere, and
  // where type and size are the same.
  bool reduced_in_place = false;
  // The host writes new weights where the gradients of the same size were, on their way to the
  // device.
  bool weights_in_place = false;
  bool sequence = false;           // what parallel.sequence became
  std::vector<std::string> notes;  // how automatic values were resolved, one line each
  int64_t steps_per_epoch = 0;     // 0 when the number of samples is not known yet

  ScheduleShape shape() const { return train.shape; }
  // Steps whose batch lies in host memory: data.prefetch_factor ahead, and two in flight.
  int batches_held() const { return deck.data.prefetch_factor + 2; }
  bool saves() const;           // checkpoints, unasked
  bool split_backward() const;  // the schedule has backward_weight instructions
  // Elements of chunk `chunk` that one data rank's optimizer owns.
  int64_t shard_elements(int chunk) const;
  // What one rank at this pipeline coordinate allocates; every tensor and data rank there the same.
  std::vector<MemoryLine> memory(int pp_rank) const;
  size_t bytes_at(Home home, int pp_rank) const;
  size_t device_bytes(int pp_rank) const { return bytes_at(Home::device, pp_rank); }
};

ChunkLayers layers_of(const Chunk& chunk);

// Bytes of one value of `phase`:
//   pictures, labels      u8 (B,channels,H,W), i32 (B)
//   activation, gradient  boundary_tensor; 0 for chunk 0
//   saved, deferred, workspace   chunk_saved, chunk_deferred, chunk_workspace of architecture.hpp
//   stored                stored_layout
//   weights               parameters.elements, working
//   host_weights          shard_elements, working; 0 where gradients were
//   gradients             parameters.elements, acc
//   reduced               shard_elements in gradient_store; 0 if reduced in place
//   host_gradients        shard_elements in gradient_store
//   state                 state_layout
//   step_state, norm_sums, loss   kControlBytes
//   multiplier            0: it lies in step_state
size_t value_bytes(const Plan& plan, const Phase& phase, Value value, int chunk);
inline constexpr size_t kControlBytes = 1024;

// What an optimizer keeps of a chunk's shard, part after part in its state slot.
enum class StatePart : uint8_t {
  master,  // f32 (f64 for f64 models), as m, v and ema
  m,
  v,  // or, with optimizer.moments = "int8":
  m_codes,
  m_scales,  // u8 an element, f32 a block
  v_codes,
  v_scales,
  ema,  // with optimizer.ema
};
inline constexpr int kStatePartCount = static_cast<int>(StatePart::ema) + 1;
struct PlacedState {
  size_t offset = 0;
  DType dtype{};
  int64_t elements = 0;  // 0: not kept
};
struct StateLayout {
  std::array<PlacedState, kStatePartCount> parts{};
  size_t bytes = 0;
  const PlacedState& operator[](StatePart part) const { return parts[static_cast<size_t>(part)]; }
};
StateLayout state_layout(const Plan& plan, int chunk);

// What a checkpoint keeps of a parameter, in f32 each: master weights, two moments, and averages
// where the deck has them.
int saved_parts(const Deck& deck);
// What one rank's part of a checkpoint takes: master weights, moments and averages in f32. Of a
// rank that writes: without ZeRO the first data rank, and the first tensor rank where all hold the
// same.
struct SaveSize {
  size_t bytes = 0;
  // Host memory: of all that is copied from the device, or checkpoint.pool, or less where less is
  // enough.
  size_t pool = 0;
  size_t held = 0;  // what the next step's updates wait for at most: max(0, bytes - pool)
};
SaveSize save_size(const Plan& plan, int pp_rank);

// Device memory that CUDA's driver takes for a rank's buffers beyond their bytes and beyond what it
// holds before there are any (Hardware::overhead_bytes): whole blocks of 2 MiB, page tables of
// pinned host memory (8 bytes for each 4 KiB), and the graphs of recorded work, which took up to 10
// MB where it was measured (H200, CUDA 13.0; tests/benchmark/planned_memory.py). 0 for a CPU.
size_t driver_bytes(const Plan& plan, int pp_rank);

// How what a forward saved waits for its backward where it is not left as it is: tensors of `saved`
// that follow each other are one piece, since a kernel's start costs as much as a small tensor; and
// the chunk's input.
struct StoredTensor {
  Value from{};       // saved or activation
  size_t offset = 0;  // in it
  DType type{};
  int64_t elements = 0;
  bool quantised = false;        // codes at `at`, scales (f32, one a block) at `scales_at`; else
  size_t at = 0, scales_at = 0;  // a copy at `at`
  int64_t blocks() const { return (elements + kBlock - 1) / kBlock; }
  static constexpr int64_t kBlock = 256;  // elements of a scale
};
struct StoredLayout {
  std::vector<StoredTensor> pieces;
  size_t bytes = 0;
  int64_t drawn_blocks() const;  // of all quantised pieces
};
StoredLayout stored_layout(const Plan& plan, const Phase& phase, int chunk);

// Throws Error(bad_input) with every fault at once: divisibility of batch, heads, image, mlp; more
// chunks than blocks; schedule against shape; an unknown schedule file; a home that cannot be.
// world_size 0 = whatever the mesh needs; else a mismatch is a fault that names
// parallel.pipeline/data/tensor and `mpirun -n`.
Plan make_plan(const Deck& deck, int world_size = 0);

// Ranks that the deck asks for.
int ranks_of(const Deck& deck);

}  // namespace voltapile
