// The plan: mesh + chunk table + shards + programs + buffers, computed from a deck, identical on
// every rank. Pure.
#pragma once
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
// time.
struct ValuePool {
  Value value{};
  std::vector<size_t> slot_bytes;  // one entry a slot
  // slot of (chunk, micro), -1 where this rank never holds it. Index: (chunk + 1) * (micros + 1) +
  // (micro + 1).
  std::vector<int> slot_of;
};
struct BufferPlan {              // of one pipeline rank
  std::vector<ValuePool> pools;  // indexed by Value
  int micros = 0;
  int slot(Value value, int chunk, int micro) const {
    const auto& table = pools[static_cast<size_t>(value)].slot_of;
    const auto index = static_cast<size_t>((chunk + 1) * (micros + 1) + (micro + 1));
    return index < table.size() ? table[index] : -1;
  }
  size_t bytes(Value value) const;
};

// Programs and buffers for one purpose: training, or evaluation.
struct Phase {
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
  bool on_host = false;
};

struct Plan {
  Deck deck;  // resolved: nothing automatic is left
  Mesh mesh;
  Architecture architecture;
  std::vector<Chunk> chunks;
  Phase train, eval;
  DType gradient_store = DType::f32;  // what memory.gradients became
  bool sequence = false;              // what parallel.sequence became
  std::vector<std::string> notes;     // how automatic values were resolved, one line each

  std::vector<MemoryLine> memory(
      int pp_rank) const;  // what one rank at this pipeline coordinate allocates
  size_t device_bytes(int pp_rank) const;
  int64_t steps_per_epoch = 0;  // 0 when the number of samples is not known yet
};

// Bytes of one value: boundary activation, saved set of a chunk, ... of `phase`.
size_t value_bytes(const Plan& plan, const Phase& phase, Value value, int chunk);

// Throws Error(bad_input) with every fault at once: divisibility of batch, heads, image, mlp; more
// chunks than blocks; schedule against shape; an unknown schedule file; a home that cannot be.
// world_size 0 = whatever the mesh needs; else a mismatch is a fault that names
// parallel.pipeline/data/tensor and `mpirun -n`.
Plan make_plan(const Deck& deck, int world_size = 0);

// Ranks that the deck asks for.
int ranks_of(const Deck& deck);

}  // namespace voltapile
