#include "voltapile/plan/costs.hpp"

namespace voltapile {

ChunkFlops flops_of(const Plan& plan, const Chunk& chunk) {
  const Architecture& a = plan.architecture;
  const int64_t micro = plan.train.sizes.micro;
  ChunkFlops sum;
  const auto layer_flops = [&](int layer) {
    return flops(a, a.layers[static_cast<size_t>(layer)], micro);
  };
  for (int l = chunk.first_layer; l < chunk.end_layer; ++l) {
    const Flops f = layer_flops(l);
    sum.flops.forward += f.forward;
    sum.flops.backward_input += f.backward_input;
    sum.flops.backward_weight += f.backward_weight;
    if (plan.train.sizes.rebuild_attention &&
        a.layers[static_cast<size_t>(l)].kind == LayerKind::block)
      sum.rebuilt += attention_flops(a, micro);
  }
  if (chunk.segment_layers == 0) return sum;
  // A segment's last product is not needed again, unless LayerScale's gradient reads it.
  const double last_product = 2.0 * static_cast<double>(micro) * static_cast<double>(a.tokens()) *
                              static_cast<double>(a.model.dim) * static_cast<double>(a.model.mlp);
  for (const Segment& segment : segments(a, layers_of(chunk))) {
    for (int l = segment.first_layer; l < segment.end_layer; ++l)
      sum.recompute += layer_flops(l).forward;
    if (a.model.layer_scale == 0) sum.recompute -= last_product;
  }
  return sum;
}

InstructionCost cost_of(const Plan& plan, const Instruction& instruction) {
  const auto of_chunk = [&](Value value) {
    return static_cast<int64_t>(value_bytes(plan, plan.train, value, instruction.chunk));
  };
  const auto arithmetic = [&](auto&& part) {
    const ChunkFlops all = flops_of(plan, plan.chunks[static_cast<size_t>(instruction.chunk)]);
    return InstructionCost{.flops = part(all) / plan.mesh.tp};
  };
  const auto shard_of = [&](DType type) {
    return plan.shard_elements(instruction.chunk) * static_cast<int64_t>(bytes_of(type));
  };
  const auto moved = [](int64_t bytes) { return InstructionCost{.bytes = bytes}; };
  switch (instruction.op) {
    case Op::forward: return arithmetic([](const ChunkFlops& c) { return c.flops.forward; });
    case Op::recompute: return arithmetic([](const ChunkFlops& c) { return c.recompute; });
    case Op::backward:
      return arithmetic([](const ChunkFlops& c) {
        return c.flops.backward_input + c.rebuilt + c.flops.backward_weight;
      });
    case Op::backward_input:
      return arithmetic([](const ChunkFlops& c) { return c.flops.backward_input + c.rebuilt; });
    case Op::backward_weight:
      return arithmetic([](const ChunkFlops& c) { return c.flops.backward_weight; });
    case Op::load_batch:
      return moved((instruction.chunk == 0 ? of_chunk(Value::pictures) : 0) +
                   (instruction.chunk + 1 == static_cast<int>(plan.chunks.size())
                        ? of_chunk(Value::labels)
                        : 0));
    case Op::send_activation:
    case Op::receive_activation: return moved(of_chunk(Value::activation));
    case Op::send_gradient:
    case Op::receive_gradient: return moved(of_chunk(Value::gradient));
    case Op::store_activation:
    case Op::fetch_activation: return moved(of_chunk(Value::stored));
    case Op::load_weights:
    case Op::save_weights:
    case Op::fetch_weights: return moved(shard_of(plan.train.sizes.working));
    case Op::gather_weights: return moved(plan.mesh.dp > 1 ? of_chunk(Value::weights) : 0);
    case Op::reduce_gradients: return moved(plan.mesh.dp > 1 ? of_chunk(Value::gradients) : 0);
    case Op::offload_gradients: return moved(shard_of(plan.gradient_store));
    case Op::load_state:
    case Op::save_state: return moved(of_chunk(Value::state));
    case Op::update:
      // Reads gradients and state, writes state and weights.
      return moved(shard_of(plan.gradient_store) + 2 * of_chunk(Value::state) +
                   shard_of(plan.train.sizes.working));
    case Op::norm: return {};  // a few numbers: squares are summed where gradients are reduced
    case Op::snapshot: return moved(of_chunk(Value::state));
  }
  return {};
}

}  // namespace voltapile
