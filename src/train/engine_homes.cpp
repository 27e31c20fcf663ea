// What the engine enqueues for weights, gradients, state and activations that live elsewhere
// between uses.
#include "voltapile/device/host/adamw.hpp"

#include "engine_impl.hpp"

namespace voltapile {

static_assert(StoredTensor::kBlock == kQuantiseBlock, "the plan's sizes are the kernels'");

void Engine::Impl::update(int chunk, Lane lane, Stream& stream) {
  if (lane == Lane::host) {
    const auto ring = static_cast<size_t>(issued % kRing);
    stream.run_on_host([this, chunk, ring] { update_on_host(chunk, ring); });
    return;
  }
  const Range own = context.shard(chunk);
  const TensorView master = context.state(chunk, StatePart::master);
  kernels.adamw(context.reduced(chunk), master, context.state(chunk, StatePart::m),
                context.state(chunk, StatePart::v),
                context.weights(chunk).slice_flat(own.begin, own.end),
                chunks[static_cast<size_t>(chunk)].runs, rules, state(issued), stream);
  const TensorView average = context.state(chunk, StatePart::ema);
  if (!average) return;
  for (const Range& part : chunks[static_cast<size_t>(chunk)].updated)
    kernels.average(master.slice_flat(part.begin, part.end), plan.deck.optimizer.ema, state(issued),
                    average.slice_flat(part.begin, part.end), stream);
}

void Engine::Impl::update_on_host(int chunk, size_t ring) {
  if (plan.deck.memory.optimizer == Home::host) context.hold().wait(chunk);
  StepState state = *host_update(static_cast<int64_t>(ring));
  state.inputs = reinterpret_cast<const StepInputs*>(host_inputs.data())[ring];
  host::adamw(context.host_pool(), {.gradients = context.host_gradients(chunk),
                                    .master = context.state(chunk, StatePart::master),
                                    .m = context.state(chunk, StatePart::m),
                                    .v = context.state(chunk, StatePart::v),
                                    .moments = context.moments(chunk),
                                    .ema = context.state(chunk, StatePart::ema),
                                    .ema_decay = plan.deck.optimizer.ema,
                                    .weights = context.host_weights(chunk),
                                    .runs = chunks[static_cast<size_t>(chunk)].runs,
                                    .rules = rules,
                                    .state = &state});
}

void Engine::Impl::offload_gradients(int chunk, Stream& stream) {
  const TensorView reduced = context.reduced(chunk);
  device.copy(context.host_gradients(chunk).data, reduced.data, reduced.bytes(), stream);
}

void Engine::Impl::fetch_weights(int chunk, Stream& stream) {
  const Range own = context.shard(chunk);
  const TensorView weights = context.host_weights(chunk);
  device.copy(context.weights(chunk).slice_flat(own.begin, own.end).data, weights.data,
              weights.bytes(), stream);
}

// (elements), where a stored piece comes from and goes back to.
TensorView Engine::Impl::stored_source(const StoredTensor& piece, int chunk, int micro) const {
  return {place(piece.from, chunk, micro) + piece.offset, piece.type, {piece.elements}};
}

void Engine::Impl::store_activation(int chunk, int micro, Stream& stream) {
  std::byte* stored = place(Value::stored, chunk, micro);
  // Random numbers of a chunk's pieces follow each other, micro-batch after micro-batch.
  int64_t drawn = 0;
  const StoredLayout& layout = chunks[static_cast<size_t>(chunk)].stored;
  for (const StoredTensor& piece : layout.pieces) {
    const TensorView source = stored_source(piece, chunk, micro);
    if (!piece.quantised) {
      device.copy(stored + piece.at, source.data, source.bytes(), stream);
      continue;
    }
    const Rounding rounding{
        .seed = plan.deck.run.seed,
        .item = static_cast<uint32_t>(chunk),
        .state = state(issued),
        .first_index = (micro * layout.drawn_blocks() + drawn) * kQuantiseBlock,
    };
    kernels.quantise_8bit(source, rounding, {stored + piece.at, DType::u8, {piece.elements}},
                          {stored + piece.scales_at, DType::f32, {piece.blocks()}}, stream);
    drawn += piece.blocks();
  }
}

void Engine::Impl::fetch_activation(int chunk, int micro, Stream& stream) {
  std::byte* stored = place(Value::stored, chunk, micro);
  for (const StoredTensor& piece : chunks[static_cast<size_t>(chunk)].stored.pieces) {
    const TensorView source = stored_source(piece, chunk, micro);
    if (piece.quantised)
      kernels.dequantise_8bit({stored + piece.at, DType::u8, {piece.elements}},
                              {stored + piece.scales_at, DType::f32, {piece.blocks()}}, source,
                              stream);
    else device.copy(source.data, stored + piece.at, source.bytes(), stream);
  }
}

}  // namespace voltapile
