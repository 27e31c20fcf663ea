#include <algorithm>
#include <numeric>
#include <utility>

#include "voltapile/base/error.hpp"
#include "voltapile/plan/plan.hpp"

namespace voltapile {
namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class MemoryTable {
 public:
  void add(std::string name, size_t bytes, Home home = Home::device) {
    if (bytes > 0) lines_.push_back({std::move(name), bytes, home});
  }
  std::vector<MemoryLine> take() { return std::move(lines_); }

 private:
  std::vector<MemoryLine> lines_;
};

std::string counted(std::string_view name, size_t slots) {
  return slots <= 1 ? std::string(name) : format("{}, {} buffers", name, slots);
}
// Of what lives elsewhere and is here only while it is needed.
std::string in_transit(std::string_view name, size_t slots) {
  return counted(format("{} in transit", name), slots);
}

}  // namespace

ChunkLayers layers_of(const Chunk& chunk) {
  return {chunk.first_layer, chunk.end_layer, chunk.segment_layers};
}

bool Plan::saves() const {
  const Deck::Checkpoint& rules = deck.checkpoint;
  return rules.every_steps > 0 || rules.every_minutes > 0 || rules.at_end;
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
    case Value::norm_sums:
    case Value::loss: return kControlBytes;
    case Value::multiplier: return 0;
    default: break;
  }
  if (chunk_number < 0) return 0;
  const Chunk& chunk = plan.chunks[static_cast<size_t>(chunk_number)];
  const auto elements = static_cast<size_t>(chunk.parameters.elements);
  switch (value) {
    case Value::activation:
    case Value::gradient:
      return chunk_number == 0 ? 0 : boundary_tensor(plan.architecture, phase.sizes).bytes();
    case Value::saved: return chunk_saved(plan.architecture, layers_of(chunk), phase.sizes).bytes;
    case Value::stored: return stored_layout(plan, phase, chunk_number).bytes;
    case Value::deferred:
      return chunk_deferred(plan.architecture, layers_of(chunk), phase.sizes).bytes;
    case Value::weights: return elements * bytes_of(working);
    case Value::host_weights:
      if (plan.weights_in_place) return 0;
      return static_cast<size_t>(plan.shard_elements(chunk_number)) * bytes_of(working);
    case Value::host_gradients:
      return static_cast<size_t>(plan.shard_elements(chunk_number)) * bytes_of(plan.gradient_store);
    case Value::gradients: return elements * bytes_of(accumulate_type(working));
    case Value::reduced:
      if (plan.reduced_in_place) return 0;
      return static_cast<size_t>(plan.shard_elements(chunk_number)) * bytes_of(plan.gradient_store);
    case Value::state: return state_layout(plan, chunk_number).bytes;
    case Value::workspace:
      return chunk_workspace(plan.architecture, layers_of(chunk), phase.sizes, phase.training)
          .bytes;
    default: break;
  }
  VP_CHECK(false, "{} has no size", name_of(value));
}

StateLayout state_layout(const Plan& plan, int chunk) {
  const DType acc = accumulate_type(plan.deck.precision.type);
  const int64_t n = plan.shard_elements(chunk);
  const int64_t blocks = (n + StoredTensor::kBlock - 1) / StoredTensor::kBlock;
  StateLayout layout;
  const auto add = [&](StatePart part, DType dtype, int64_t elements) {
    layout.parts[static_cast<size_t>(part)] = {layout.bytes, dtype, elements};
    layout.bytes += aligned(static_cast<size_t>(elements) * bytes_of(dtype));
  };
  add(StatePart::master, acc, n);
  if (plan.deck.optimizer.moments == MomentStore::f32) {
    add(StatePart::m, acc, n);
    add(StatePart::v, acc, n);
  } else {
    add(StatePart::m_codes, DType::u8, n);
    add(StatePart::m_scales, DType::f32, blocks);
    add(StatePart::v_codes, DType::u8, n);
    add(StatePart::v_scales, DType::f32, blocks);
  }
  if (plan.deck.optimizer.ema > 0) add(StatePart::ema, acc, n);
  return layout;
}

bool has_test_part(const Deck& deck) {
  return deck.data.format == DataFormat::synthetic ? deck.data.synthetic_test > 0
                                                   : !deck.data.test.empty();
}

int saved_parts(const Deck& deck) { return deck.optimizer.ema > 0 ? 4 : 3; }

SaveSize save_size(const Plan& plan, int pp_rank) {
  constexpr size_t kPage = 4096;
  const auto parts = static_cast<size_t>(saved_parts(plan.deck));
  SaveSize size;
  size_t tensors = 0;
  for (int c = 0; c < plan.train.shape.chunks.chunks(); ++c) {
    const Chunk& chunk = plan.chunks[static_cast<size_t>(c)];
    if (chunk.rank != pp_rank) continue;
    size.bytes += parts * static_cast<size_t>(plan.shard_elements(c)) * sizeof(float);
    tensors += parts * chunk.parameters.entries.size();
  }
  size.pool = size.bytes;
  if (plan.deck.memory.optimizer == Home::device) return size;
  // Each tensor begins at a page; and there is room for some slabs in the smallest model's, too.
  const size_t all = (size.bytes / kPage + tensors + 1) * kPage;
  size.pool = std::max(std::min(static_cast<size_t>(plan.deck.checkpoint.pool_bytes), all),
                       size_t{16} * kPage);
  size.held = size.bytes - std::min(size.bytes, size.pool);
  return size;
}

size_t driver_bytes(const Plan& plan, int pp_rank) {
  if (plan.deck.run.device != DeviceKind::cuda) return 0;
  constexpr size_t kBlock = 2 << 20, kSmall = 1 << 20, kGraphs = 12'000'000;
  const auto whole_blocks = [](size_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; };
  size_t taken = kGraphs, small = 0, pinned = 0;
  for (const ValuePool& pool : plan.train.buffers[static_cast<size_t>(pp_rank)].pools) {
    const size_t bytes = std::accumulate(pool.slot_bytes.begin(), pool.slot_bytes.end(), size_t{0});
    if (pool.home != Home::device) pinned += pool.value == Value::state ? 0 : bytes;
    else if (bytes < kSmall) small += bytes;  // these share blocks
    else taken += whole_blocks(bytes) - bytes;
  }
  return taken + whole_blocks(small) - small + pinned / 512;
}

int64_t StoredLayout::drawn_blocks() const {
  int64_t blocks = 0;
  for (const StoredTensor& piece : pieces) blocks += piece.quantised ? piece.blocks() : 0;
  return blocks;
}

namespace {
// Makes `next`, which comes later in memory, part of `piece` where one kernel can do both. What is
// copied as it is may have what aligns it in between.
bool append(StoredTensor& piece, const StoredTensor& next) {
  if (next.from != piece.from || next.type != piece.type || next.quantised != piece.quantised)
    return false;
  const size_t item = bytes_of(piece.type);
  const size_t gap = next.offset - piece.offset - static_cast<size_t>(piece.elements) * item;
  if (piece.quantised ? gap > 0 || piece.elements % StoredTensor::kBlock != 0 : gap >= kAlignment)
    return false;
  piece.elements = static_cast<int64_t>((next.offset - piece.offset) / item) + next.elements;
  return true;
}
}  // namespace

StoredLayout stored_layout(const Plan& plan, const Phase& phase, int chunk_number) {
  const Chunk& chunk = plan.chunks[static_cast<size_t>(chunk_number)];
  const bool in_8_bits = plan.deck.memory.activations == ActivationStore::int8;
  StoredLayout layout;
  const auto add = [&](Value from, size_t offset, const Tensor& tensor) {
    StoredTensor piece{.from = from,
                       .offset = offset,
                       .type = tensor.dtype,
                       .elements = tensor.shape.elements(),
                       .quantised = in_8_bits && !tensor.exact};
    if (layout.pieces.empty() || !append(layout.pieces.back(), piece))
      layout.pieces.push_back(piece);
  };
  const TensorLayout saved = chunk_saved(plan.architecture, layers_of(chunk), phase.sizes);
  if (in_8_bits)
    for (const PlacedTensor& placed : saved.tensors)
      add(Value::saved, placed.offset, placed.tensor);
  else if (saved.bytes > 0)  // as a whole
    add(Value::saved, 0, {"saved", {static_cast<int64_t>(saved.bytes)}, DType::u8});
  if (chunk_number > 0) {
    Tensor input = boundary_tensor(plan.architecture, phase.sizes);
    input.exact = phase.sizes.recompute != Recompute::layers;  // as inputs of the blocks within
    add(Value::activation, 0, input);
  }
  const auto place = [&](size_t bytes) {
    return std::exchange(layout.bytes, layout.bytes + aligned(bytes));
  };
  for (StoredTensor& piece : layout.pieces) {
    const auto elements = static_cast<size_t>(piece.elements);
    piece.at = place(elements * (piece.quantised ? 1 : bytes_of(piece.type)));
    if (piece.quantised)
      piece.scales_at = place(static_cast<size_t>(piece.blocks()) * sizeof(float));
  }
  return layout;
}

std::vector<MemoryLine> Plan::memory(int pp_rank) const {
  const BufferPlan& buffers = train.buffers[static_cast<size_t>(pp_rank)];
  const auto& homes = deck.memory;
  size_t weights = 0, state = 0;
  for (int c = 0; c < train.shape.chunks.chunks(); ++c) {
    if (chunks[static_cast<size_t>(c)].rank != pp_rank) continue;
    weights += static_cast<size_t>(shard_elements(c)) * bytes_of(deck.precision.type);
    state += value_bytes(*this, train, Value::state, c);
  }
  MemoryTable table;
  const auto add_pool = [&](std::string_view name, Value value, bool transit = false) {
    const ValuePool& pool = buffers.pool(value);
    const size_t slots = pool.slot_bytes.size();
    table.add(transit ? in_transit(name, slots) : counted(name, slots), buffers.bytes(value),
              pool.home);
  };
  const auto add_persistent = [&](std::string_view name, Value value) {
    table.add(std::string(name), buffers.bytes(value), buffers.pool(value).home);
  };
  const std::string acc(name_of(accumulate_type(deck.precision.type)));
  const std::string weights_name = format("weights ({})", name_of(deck.precision.type));
  if (homes.weights == Home::device) add_persistent(weights_name, Value::weights);
  else add_pool(weights_name, Value::weights, true);
  if (homes.weights == Home::host) add_persistent(weights_name, Value::host_weights);
  else add_pool(weights_name, Value::host_weights, true);
  if (homes.weights == Home::nvme) table.add(weights_name, weights, Home::nvme);
  const bool quantised = deck.optimizer.moments == MomentStore::int8;
  const std::string moments = quantised ? "8 bits" : acc;
  const std::pair<std::string, std::vector<StatePart>> kept[] = {
      {"master weights (" + acc + ")", {StatePart::master}},
      {"first moments m (" + moments + ")",
       {StatePart::m, StatePart::m_codes, StatePart::m_scales}},
      {"second moments v (" + moments + ")",
       {StatePart::v, StatePart::v_codes, StatePart::v_scales}},
      {"averaged weights (" + acc + ")", {StatePart::ema}}};
  const ValuePool& states = buffers.pool(Value::state);
  size_t unnamed = buffers.bytes(Value::state);
  for (const auto& [name, parts] : kept) {
    size_t own = 0;  // of all chunks
    for (int c = 0; c < train.shape.chunks.chunks(); ++c) {
      if (chunks[static_cast<size_t>(c)].rank != pp_rank) continue;
      const StateLayout layout = state_layout(*this, c);
      for (StatePart part : parts)
        own += static_cast<size_t>(layout[part].elements) * bytes_of(layout[part].dtype);
    }
    if (homes.optimizer == Home::nvme) {
      table.add(name, own, Home::nvme);
    } else {
      table.add(name, own, states.home);
      unnamed -= own;
    }
  }
  if (homes.optimizer == Home::nvme) add_pool("optimizer state", Value::state, true);
  else table.add("gaps between them", unnamed, states.home);
  add_pool("gradients (" + acc + ")", Value::gradients);
  const std::string reduced = format("reduced gradients ({})", name_of(gradient_store));
  add_pool(reduced, Value::reduced);
  table.add(reduced, buffers.bytes(Value::host_gradients), Home::host);
  const bool stores = homes.activations != ActivationStore::working;
  add_pool("saved activations", Value::saved, stores);
  add_pool(homes.activations == ActivationStore::int8 ? "stored activations (8 bits)"
                                                      : "stored activations",
           Value::stored);
  add_pool("boundary activations", Value::activation);
  add_pool("boundary gradients", Value::gradient);
  add_pool("deferred for weight gradients", Value::deferred);
  table.add("workspace", buffers.bytes(Value::workspace));
  add_pool("pictures", Value::pictures);
  add_pool("labels", Value::labels);
  table.add("step state", buffers.bytes(Value::step_state) + buffers.bytes(Value::norm_sums) +
                              buffers.bytes(Value::loss));
  // Batches in host memory: read ahead, and in use by the steps in flight.
  const bool first = chunks.front().rank == pp_rank, last = chunks.back().rank == pp_rank;
  const auto add_batches = [&](std::string_view name, const Phase& phase, int batches) {
    const size_t micro = (first ? value_bytes(*this, phase, Value::pictures, -1) : 0) +
                         (last ? value_bytes(*this, phase, Value::labels, -1) : 0);
    const auto held = static_cast<size_t>(batches);
    table.add(counted(name, held), held * micro * static_cast<size_t>(phase.shape.micros),
              Home::host);
  };
  add_batches("pictures and labels of a step", train, batches_held());
  if (has_test_part(deck)) add_batches("pictures and labels to evaluate", eval, kEvaluationBatches);
  if (saves())
    table.add("state on its way to a checkpoint", save_size(*this, pp_rank).pool, Home::host);
  return table.take();
}

size_t Plan::bytes_at(Home home, int pp_rank) const {
  size_t bytes = 0;
  for (const MemoryLine& line : memory(pp_rank))
    if (line.home == home) bytes += line.bytes;
  return bytes;
}

}  // namespace voltapile
