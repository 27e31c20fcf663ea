#include "voltapile/train/engine.hpp"

namespace voltapile {

RankContext::RankContext(const Plan& plan, Device& device, Links& links, int rank, int threads)
    : plan_(plan),
      device_(device),
      links_(links),
      coord_(plan.mesh.coord(rank)),
      arena_(device, plan.train.buffers[static_cast<size_t>(coord_.pp)]),
      host_pool_(
          std::make_unique<ThreadPool>(plan.deck.memory.optimizer == Home::device ? 1 : threads)) {
  for (int chunk = 0; chunk < static_cast<int>(plan.chunks.size()); ++chunk) {
    if (plan.chunks[static_cast<size_t>(chunk)].rank == coord_.pp) chunks_.push_back(chunk);
  }
}

bool RankContext::has_first_chunk() const { return !chunks_.empty() && chunks_.front() == 0; }
bool RankContext::has_last_chunk() const {
  return !chunks_.empty() && chunks_.back() == plan_.train.shape.chunks.last();
}

TensorView RankContext::weights(int chunk) const {
  return {arena_.at(Value::weights, chunk, -1),
          plan_.train.sizes.working,
          {plan_.chunks[static_cast<size_t>(chunk)].parameters.elements}};
}

TensorView RankContext::gradients(int chunk) const {
  return {arena_.at(Value::gradients, chunk, -1),
          accumulate_type(plan_.train.sizes.working),
          {plan_.chunks[static_cast<size_t>(chunk)].parameters.elements}};
}

TensorView RankContext::reduced(int chunk) const {
  const Range own = shard(chunk);
  if (plan_.reduced_in_place) {
    void* const place = gradients(chunk).slice_flat(own.begin, own.end).data;
    return {place, plan_.gradient_store, {own.end - own.begin}};
  }
  return {arena_.at(Value::reduced, chunk, -1), plan_.gradient_store, {own.end - own.begin}};
}

Range RankContext::shard(int chunk) const {
  return voltapile::shard(plan_.chunks[static_cast<size_t>(chunk)].parameters,
                          plan_.deck.optimizer.zero, plan_.mesh.dp, coord_.dp);
}

TensorView RankContext::host_weights(int chunk) const {
  const Range own = shard(chunk);
  return {
      arena_.at(Value::host_weights, chunk, -1), plan_.train.sizes.working, {own.end - own.begin}};
}

TensorView RankContext::host_gradients(int chunk) const {
  const Range own = shard(chunk);
  return {arena_.at(Value::host_gradients, chunk, -1), plan_.gradient_store, {own.end - own.begin}};
}

// Master weights and moments lie one after the other in the chunk's state slot.
TensorView RankContext::state_part(int chunk, StatePart part) const {
  const Range own = shard(chunk);
  const DType type = accumulate_type(plan_.train.sizes.working);
  const int64_t elements = own.end - own.begin;
  return {arena_.at(Value::state, chunk, -1) +
              static_cast<size_t>(static_cast<int>(part) * elements) * bytes_of(type),
          type,
          {elements}};
}
TensorView RankContext::master(int chunk) const { return state_part(chunk, StatePart::master); }
TensorView RankContext::m(int chunk) const { return state_part(chunk, StatePart::m); }
TensorView RankContext::v(int chunk) const { return state_part(chunk, StatePart::v); }

void RankContext::put_weights(int chunk, const std::byte* data) {
  Stream& stream = device_.stream(Lane::compute);
  if (plan_.deck.memory.weights == Home::device) {
    const TensorView here = weights(chunk);
    device_.copy(here.data, data, here.bytes(), stream);
  } else {
    const TensorView here = host_weights(chunk);
    const auto skipped = static_cast<size_t>(shard(chunk).begin) * bytes_of(here.dtype);
    device_.copy(here.data, data + skipped, here.bytes(), stream);
  }
  device_.wait_on_host(device_.record(stream));
}

void RankContext::put_state(int chunk, StatePart part, const float* data) {
  const TensorView here = state_part(chunk, part);
  Stream& stream = device_.stream(Lane::compute);
  device_.copy(here.data, data, here.bytes(), stream);
  device_.wait_on_host(device_.record(stream));
}

}  // namespace voltapile
