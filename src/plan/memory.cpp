#include <algorithm>
#include <numeric>

#include "voltapile/base/error.hpp"
#include "voltapile/plan/plan.hpp"

namespace voltapile {
namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// What an activation takes while it waits for backward.
size_t stored_bytes(const Tensor& tensor, DType working, ActivationStore store) {
  if (store != ActivationStore::int8 || tensor.dtype != working) return tensor.bytes();
  return static_cast<size_t>(tensor.shape.elements()) +
         static_cast<size_t>(tensor.shape.rows()) * sizeof(float);
}

size_t saved_bytes(const Plan& plan, const Phase& phase, const Chunk& chunk) {
  const TensorLayout layout = chunk_saved(plan.architecture, layers_of(chunk), phase.sizes);
  const ActivationStore store = plan.deck.memory.activations;
  if (store != ActivationStore::int8) return layout.bytes;
  size_t bytes = 0;
  for (const PlacedTensor& placed : layout.tensors)
    bytes += aligned(stored_bytes(placed.tensor, phase.sizes.working, store));
  return bytes;
}

size_t state_bytes(const Plan& plan, int chunk) {
  const DType acc = accumulate_type(plan.deck.precision.type);
  return 3 * static_cast<size_t>(plan.shard_elements(chunk)) * bytes_of(acc);
}

// Sums and maxima over the chunks of one pipeline rank.
struct OverChunks {
  size_t sum = 0, most = 0;
  void add(size_t bytes) {
    sum += bytes;
    most = std::max(most, bytes);
  }
};

class MemoryTable {
 public:
  void add(std::string name, size_t bytes, Home home = Home::device) {
    if (bytes > 0) lines_.push_back({std::move(name), bytes, home});
  }
  // Lives at `home`; elsewhere than on the device it passes through two buffers of the largest
  // piece on its way (nvme: on the host).
  void add_at_home(const std::string& name, const OverChunks& size, Home home,
                   Home staged_on = Home::device) {
    add(name, size.sum, home);
    if (home != staged_on && size.sum > 0)
      add(name + ", 2 buffers in transit", 2 * size.most, staged_on);
  }
  std::vector<MemoryLine> take() { return std::move(lines_); }

 private:
  std::vector<MemoryLine> lines_;
};

std::string counted(std::string_view name, size_t slots) {
  return slots <= 1 ? std::string(name) : format("{}, {} buffers", name, slots);
}

}  // namespace

ChunkLayers layers_of(const Chunk& chunk) {
  return {chunk.first_layer, chunk.end_layer, chunk.segment_layers};
}

bool Plan::split_backward() const {
  for (const Program& program : train.programs)
    for (const Instruction& instruction : program)
      if (instruction.op == Op::backward_weight) return true;
  return false;
}

int64_t Plan::shard_elements(int chunk) const {
  const int64_t elements = chunks[static_cast<size_t>(chunk)].parameters.elements;
  return deck.optimizer.zero == 0 ? elements : elements / mesh.dp;
}

size_t value_bytes(const Plan& plan, const Phase& phase, Value value, int chunk_number) {
  const auto& m = plan.architecture.model;
  const DType working = plan.deck.precision.type;
  switch (value) {
    case Value::pictures:
      return static_cast<size_t>(phase.sizes.micro * m.channels * m.image[0] * m.image[1]);
    case Value::labels: return static_cast<size_t>(phase.sizes.micro) * sizeof(int32_t);
    case Value::step_state:
    case Value::loss: return kControlBytes;
    default: break;
  }
  if (chunk_number < 0) return 0;
  const Chunk& chunk = plan.chunks[static_cast<size_t>(chunk_number)];
  const auto elements = static_cast<size_t>(chunk.parameters.elements);
  switch (value) {
    case Value::activation:
      if (chunk_number == 0) return 0;
      return stored_bytes(boundary_tensor(plan.architecture, phase.sizes), working,
                          plan.deck.memory.activations);
    case Value::gradient:
      return chunk_number == 0 ? 0 : boundary_tensor(plan.architecture, phase.sizes).bytes();
    case Value::saved: return saved_bytes(plan, phase, chunk);
    case Value::deferred:
      return chunk_deferred(plan.architecture, layers_of(chunk), phase.sizes).bytes;
    case Value::weights: return elements * bytes_of(working);
    case Value::gradients: return elements * bytes_of(accumulate_type(working));
    case Value::reduced:
      if (plan.reduced_in_place) return 0;
      return static_cast<size_t>(plan.shard_elements(chunk_number)) * bytes_of(plan.gradient_store);
    case Value::state: return state_bytes(plan, chunk_number);
    case Value::workspace:
      return chunk_workspace(plan.architecture, layers_of(chunk), phase.sizes, phase.training)
          .bytes;
    default: break;
  }
  VP_CHECK(false, "{} has no size", name_of(value));
}

std::vector<MemoryLine> Plan::memory(int pp_rank) const {
  const BufferPlan& buffers = train.buffers[static_cast<size_t>(pp_rank)];
  const auto& homes = deck.memory;
  OverChunks weights, state, reduced;
  for (int c = 0; c < train.shape.chunks.chunks(); ++c) {
    if (chunks[static_cast<size_t>(c)].rank != pp_rank) continue;
    weights.add(value_bytes(*this, train, Value::weights, c));
    state.add(state_bytes(*this, c) / 3);
    reduced.add(value_bytes(*this, train, Value::reduced, c));
  }
  const auto pool_name = [&](std::string_view name, Value value) {
    return counted(name, buffers.pool(value).slot_bytes.size());
  };
  MemoryTable table;
  table.add_at_home(format("weights ({})", name_of(deck.precision.type)), weights, homes.weights);
  const std::string acc(name_of(accumulate_type(deck.precision.type)));
  // The host computes the update, so what lives on nvme passes through its memory.
  const Home updated_on = homes.optimizer == Home::device ? Home::device : Home::host;
  table.add_at_home("master weights (" + acc + ")", state, homes.optimizer, updated_on);
  table.add_at_home("first moments m (" + acc + ")", state, homes.optimizer, updated_on);
  table.add_at_home("second moments v (" + acc + ")", state, homes.optimizer, updated_on);
  table.add(pool_name("gradients (" + acc + ")", Value::gradients),
            buffers.bytes(Value::gradients));
  if (homes.optimizer == Home::device)
    table.add(pool_name(format("reduced gradients ({})", name_of(gradient_store)), Value::reduced),
              buffers.bytes(Value::reduced));
  else
    table.add(format("reduced gradients ({})", name_of(gradient_store)), reduced.sum, Home::host);
  const auto& saved = buffers.pool(Value::saved).slot_bytes;
  const std::string saved_name = pool_name("saved activations", Value::saved);
  if (homes.activations == ActivationStore::host) {
    table.add(saved_name, buffers.bytes(Value::saved), Home::host);
    if (!saved.empty())
      table.add("saved activations, 2 buffers in transit",
                2 * *std::max_element(saved.begin(), saved.end()));
  } else {
    table.add(saved_name, buffers.bytes(Value::saved));
  }
  table.add(pool_name("boundary activations", Value::activation), buffers.bytes(Value::activation));
  table.add(pool_name("boundary gradients", Value::gradient), buffers.bytes(Value::gradient));
  table.add(pool_name("deferred for weight gradients", Value::deferred),
            buffers.bytes(Value::deferred));
  table.add("workspace", buffers.bytes(Value::workspace));
  table.add(pool_name("pictures", Value::pictures), buffers.bytes(Value::pictures));
  table.add(pool_name("labels", Value::labels), buffers.bytes(Value::labels));
  table.add("step state", buffers.bytes(Value::step_state) + buffers.bytes(Value::loss));
  // Batches in host memory: read ahead, and in use by the steps in flight.
  const bool first = chunks.front().rank == pp_rank, last = chunks.back().rank == pp_rank;
  const size_t sample = (first ? value_bytes(*this, train, Value::pictures, -1) : 0) +
                        (last ? value_bytes(*this, train, Value::labels, -1) : 0);
  const auto held = static_cast<size_t>(batches_held());
  table.add(counted("pictures and labels of a step", held),
            held * sample * static_cast<size_t>(train.shape.micros), Home::host);
  // A checkpoint is copied here and written while training goes on.
  if (homes.optimizer == Home::device &&
      (deck.checkpoint.every_steps > 0 || deck.checkpoint.at_end))
    table.add("state on its way to a checkpoint", 3 * state.sum, Home::host);
  return table.take();
}

size_t Plan::bytes_at(Home home, int pp_rank) const {
  size_t bytes = 0;
  for (const MemoryLine& line : memory(pp_rank))
    if (line.home == home) bytes += line.bytes;
  return bytes;
}

}  // namespace voltapile
