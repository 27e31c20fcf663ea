// What each instruction enqueues on its lane. The engine has already made the lane wait for the
// operands.
#include <algorithm>

#include "engine_impl.hpp"

namespace voltapile {
namespace {

// Rounds where the wide numbers lie. Each call goes as far as its results land on memory whose
// numbers were rounded before.
void narrow_in_place(Kernels& kernels, const TensorView& wide, const TensorView& narrow,
                     Stream& stream) {
  int64_t done = 0;
  const int64_t n = wide.elements();
  const auto ratio = static_cast<int64_t>(bytes_of(wide.dtype) / bytes_of(narrow.dtype));
  while (done < n) {
    const int64_t end = std::min(n, std::max<int64_t>(1, done * ratio));
    kernels.cast(wide.slice_flat(done, end), narrow.slice_flat(done, end), stream);
    done = end;
  }
}

}  // namespace

int64_t Engine::Impl::rank_samples() const { return phase.samples_per_step / plan.mesh.dp; }

std::byte* Engine::Impl::place(Value value, int chunk, int micro) const {
  const BufferPlan& buffers = phase.buffers[static_cast<size_t>(context.coord().pp)];
  return buffers.slot(value, chunk, micro) < 0 ? nullptr : arena->at(value, chunk, micro);
}

TensorView Engine::Impl::boundary(Value value, int chunk, int micro) const {
  std::byte* data = place(value, chunk, micro);
  if (data == nullptr) return {};
  const Tensor tensor = boundary_tensor(plan.architecture, phase.sizes);
  return {data, tensor.dtype, tensor.shape};
}

ChunkMemory Engine::Impl::memory(int chunk, int micro) const {
  const Deck::Model& model = plan.deck.model;
  const bool first = chunk == 0, last = chunk == phase.shape.chunks.last();
  ChunkMemory memory;
  memory.weights = context.weights(chunk);
  if (training) memory.gradients = context.gradients(chunk);
  memory.saved = place(Value::saved, chunk, micro);
  memory.deferred = place(Value::deferred, chunk, micro);
  memory.workspace = place(Value::workspace, -1, -1);
  if (!first) memory.input = boundary(Value::activation, chunk, micro);
  if (!last) memory.output = boundary(Value::activation, chunk + 1, micro);
  if (training && !last) memory.output_gradient = boundary(Value::gradient, chunk + 1, micro);
  if (training && !first) memory.input_gradient = boundary(Value::gradient, chunk, micro);
  if (first) {
    memory.pictures = {place(Value::pictures, -1, micro),
                       DType::u8,
                       {phase.sizes.micro, model.channels, model.image[0], model.image[1]}};
  }
  if (last) {
    memory.targets.labels = {place(Value::labels, -1, micro), DType::i32, {phase.sizes.micro}};
    memory.targets.classes = model.classes;
    memory.targets.smoothing = training ? static_cast<float>(plan.deck.loss.label_smoothing) : 0.0f;
  }
  return memory;
}

MicroStep Engine::Impl::micro_step(int chunk, int micro, int64_t valid) const {
  MicroStep step;
  step.state = state(issued);
  step.sample_offset = context.coord().dp * rank_samples() + micro * phase.sizes.micro;
  step.valid = std::clamp<int64_t>(valid - micro * phase.sizes.micro, 0, phase.sizes.micro);
  step.loss_factor = 1.0 / static_cast<double>(phase.samples_per_step);
  if (chunk == phase.shape.chunks.last()) {
    step.loss = loss;
    if (!training) step.correct = correct;
    if (logits) {
      const int64_t samples = logits.shape[1], classes = logits.shape[2];
      step.logits = logits.slice_flat(micro * samples * classes, (micro + 1) * samples * classes)
                        .reshaped({samples, classes});
    }
  }
  return step;
}

// The same number for two instructions exactly when they enqueue the same work on the same memory.
uint64_t Engine::Impl::work_key(const BoundInstruction& bound) const {
  const Instruction& instruction = bound.instruction;
  const bool last = instruction.chunk == phase.shape.chunks.last();
  const bool drops = plan.deck.model.drop_path > 0;
  // The loss's gradient is scaled, and paths are dropped, by what this step's state says.
  const bool reads_state = drops || (last && instruction.op != Op::forward);
  std::vector<int64_t> what = {static_cast<int64_t>(instruction.op), instruction.chunk,
                               bound.first_backward, reads_state ? 1 + issued % kRing : 0,
                               drops ? 1 + instruction.micro : 0};
  what.push_back(static_cast<int64_t>(bound.reads.size()));
  what.insert(what.end(), bound.reads.begin(), bound.reads.end());
  what.insert(what.end(), bound.writes.begin(), bound.writes.end());
  const auto [at, added] = work_keys.try_emplace(std::move(what), work_keys.size());
  return first_work_key + at->second;
}

void Engine::Impl::enqueue(const BoundInstruction& bound, Stream& stream, const BatchMemory& batch,
                           int64_t valid, Votes votes) {
  const Op op = bound.instruction.op;
  const bool computes = op == Op::forward || op == Op::recompute || op == Op::backward ||
                        op == Op::backward_input || op == Op::backward_weight;
  const auto work = [&] { enqueue_once(bound, stream, batch, valid, votes); };
  if (training && computes && context.links().tensor->capturable())
    device.repeat(stream, work_key(bound), work);
  else work();
}

void Engine::Impl::enqueue_once(const BoundInstruction& bound, Stream& stream,
                                const BatchMemory& batch, int64_t valid, Votes votes) {
  const Instruction& instruction = bound.instruction;
  const int chunk = instruction.chunk, micro = instruction.micro;
  const auto model = [&]() -> ChunkModel& { return *chunks[static_cast<size_t>(chunk)].model; };
  if (bound.first_backward) kernels.fill(context.gradients(chunk), 0, stream);
  switch (instruction.op) {
    case Op::load_batch: return load_batch(chunk, micro, batch, stream);
    case Op::forward: return model().forward(micro_step(chunk, micro, valid), memory(chunk, micro));
    case Op::recompute:
      return model().recompute(micro_step(chunk, micro, valid), memory(chunk, micro));
    case Op::backward:
      return model().backward(micro_step(chunk, micro, valid), memory(chunk, micro));
    case Op::backward_input:
      return model().backward_input(micro_step(chunk, micro, valid), memory(chunk, micro));
    case Op::backward_weight:
      return model().backward_weight(micro_step(chunk, micro, valid), memory(chunk, micro));
    case Op::send_activation:
    case Op::receive_activation:
    case Op::send_gradient:
    case Op::receive_gradient: return exchange(instruction, stream);
    case Op::reduce_gradients: return reduce_gradients(chunk, stream);
    case Op::norm: return norm(stream, votes);
    case Op::update: return update(chunk, instruction.lane, stream);
    case Op::gather_weights: return gather_weights(chunk, stream);
    case Op::fetch_weights: return fetch_weights(chunk, stream);
    case Op::offload_gradients: return offload_gradients(chunk, stream);
    case Op::store_activation: return store_activation(chunk, micro, stream);
    case Op::fetch_activation: return fetch_activation(chunk, micro, stream);
    case Op::load_weights:
      return stream.run_on_host([this, chunk] { context.load_weights(chunk); });
    case Op::save_weights:
      return stream.run_on_host([this, chunk] { context.save_weights(chunk); });
    case Op::load_state: return stream.run_on_host([this, chunk] { context.load_state(chunk); });
    case Op::save_state: return stream.run_on_host([this, chunk] { context.save_state(chunk); });
    case Op::snapshot: break;
  }
  VP_CHECK(false, "no program of this version holds {}", name_of(instruction.op));
}

// Pictures for the first chunk, labels for the last.
void Engine::Impl::load_batch(int chunk, int micro, const BatchMemory& batch, Stream& stream) {
  const auto copy = [&](Value value, const void* host, size_t bytes_per_sample) {
    const auto bytes = static_cast<size_t>(phase.sizes.micro) * bytes_per_sample;
    device.copy(place(value, -1, micro),
                static_cast<const std::byte*>(host) + static_cast<size_t>(micro) * bytes, bytes,
                stream);
  };
  const Deck::Model& model = plan.deck.model;
  if (chunk == 0)
    copy(Value::pictures, batch.pictures.data(),
         static_cast<size_t>(model.channels * model.image[0] * model.image[1]));
  if (chunk == phase.shape.chunks.last()) copy(Value::labels, batch.labels.data(), sizeof(int32_t));
}

// An activation enters `chunk` from the rank of the chunk before it; a gradient leaves the other
// way.
void Engine::Impl::exchange(const Instruction& instruction, Stream& stream) {
  const std::vector<int>& rank_of = phase.shape.chunks.rank_of;
  const int here = rank_of[static_cast<size_t>(instruction.chunk)];
  const int before = rank_of[static_cast<size_t>(instruction.chunk - 1)];
  const bool activation =
      instruction.op == Op::send_activation || instruction.op == Op::receive_activation;
  const bool sends = instruction.op == Op::send_activation || instruction.op == Op::send_gradient;
  const auto edge = activation ? std::pair(before, here) : std::pair(here, before);
  const TensorView tensor = boundary(activation ? Value::activation : Value::gradient,
                                     instruction.chunk, instruction.micro);
  const Transfer transfer{sends ? Direction::send : Direction::receive, sends ? 1 : 0, tensor};
  context.links().edges.at(edge)->exchange({&transfer, 1}, stream);
}

void Engine::Impl::reduce_gradients(int chunk, Stream& stream) {
  const ChunkParts& parts = chunks[static_cast<size_t>(chunk)];
  const TensorView gradients = context.gradients(chunk);
  for (const Range& run : parts.partial) {
    context.links().tensor_reduce->all_reduce(gradients.slice_flat(run.begin, run.end),
                                              Reduction::sum, stream);
  }
  // Sums are taken in the type of accumulation and rounded once, when they leave for the optimizer.
  const Range own = context.shard(chunk);
  const TensorView mine = gradients.slice_flat(own.begin, own.end);
  const TensorView reduced = context.reduced(chunk);
  const bool same_type = reduced.dtype == gradients.dtype;
  Communicator& data = *context.links().data;
  if (plan.deck.optimizer.zero == 1) {
    data.reduce_scatter(gradients, same_type ? reduced : mine, Reduction::sum, stream);
  } else {
    data.all_reduce(gradients, Reduction::sum, stream);
  }
  if (!same_type && reduced.data == mine.data) narrow_in_place(kernels, mine, reduced, stream);
  else if (!same_type) kernels.cast(mine, reduced, stream);
  kernels.sum_squares(reduced, parts.pieces, slots, first_bad, stream);
}

void Engine::Impl::norm(Stream& stream, Votes votes) {
  // The loss is known on every tensor rank of the last chunk: one of them counts it.
  const auto slot = [&](int index) { return slots.slice_flat(index, index + 1); };
  const bool counts = context.has_last_chunk() && context.coord().tp == 0;
  if (counts) device.copy(slot(NormSlots::loss).data, loss.data, loss.bytes(), stream);
  kernels.fill(slot(NormSlots::samples), counts ? static_cast<double>(rank_samples()) : 0.0,
               stream);
  Communicator& world = *context.links().norm;
  kernels.fill(summed.slice_flat(kVoteSlot, kVoteSlot + 1), as_number(votes), stream);
  world.all_reduce(summed, Reduction::sum, stream);
  world.all_reduce(first_bad, Reduction::min, stream);
  const Deck& deck = plan.deck;
  const NormRules rules{
      .clip = deck.optimizer.clip,
      .dynamic_scale = deck.precision.type == DType::f16 && !deck.precision.loss_scale,
      .growth_interval = deck.precision.growth_interval,
      .for_next = early_updates,
  };
  kernels.finish_norm(slots, first_bad, rules, state(issued), state(issued + 1), stream);
  const auto ring = static_cast<size_t>(issued % kRing);
  device.copy(reinterpret_cast<double*>(host_votes.data()) + ring,
              static_cast<const double*>(summed.data) + kVoteSlot, sizeof(double), stream);
  kernels.fill(summed, 0, stream);
  kernels.fill(loss, 0, stream);
  kernels.fill(first_bad, kNoBadParameter, stream);
  device.copy(reinterpret_cast<StepState*>(host_states.data()) + ring, state(issued),
              sizeof(StepState), stream);
  const int64_t updated = issued + (early_updates ? 1 : 0);
  device.copy(reinterpret_cast<std::byte*>(host_update(updated)) + kDecidedAt,
              reinterpret_cast<const std::byte*>(state(updated)) + kDecidedAt,
              sizeof(StepState) - kDecidedAt, stream);
  device.mark(stream, reinterpret_cast<double*>(host_ends.data()) + ring);
  step_end[ring] = device.record(stream);
}

void Engine::Impl::gather_weights(int chunk, Stream& stream) {
  const Range own = context.shard(chunk);
  const TensorView weights = context.weights(chunk);
  context.links().data->all_gather(weights.slice_flat(own.begin, own.end), weights, stream);
}

}  // namespace voltapile
