// When the sm_90a kernel of the backward pass runs, and how. Compiled where the build has code for
// sm_90; otherwise no_attention_hopper.cpp takes its place.
#include "attention.hpp"
#include "attention_hopper_backward.cuh"
#include "attention_hopper_maps.hpp"
#include "attention_launch.cuh"

namespace voltapile::cuda {
namespace {

template <class S>
bool launch_hopper_backward(const TensorView& dout, const TensorView& qkv,
                            const TensorView& lengths, const TensorView& out, const TensorView& lse,
                            const TensorView& dqkv, Context& context, Stream& stream) {
  HopperBackwardOperands o{};
  o.tokens = static_cast<int>(qkv.shape[1]);
  o.heads = static_cast<int>(qkv.shape[3]);
  o.dim = static_cast<int>(qkv.shape[4]);
  o.all_heads = static_cast<int>(qkv.shape[0] * qkv.shape[3]);
  o.tiles = (o.tokens + S::kQueries - 1) / S::kQueries;
  int64_t blocks = std::min(o.all_heads, context.gpu().multiprocessors);
  if (o.tokens > S::kKeys) {
    o.partial_stride = int64_t{o.tiles} * S::kPartialOfTile;
    const auto room = static_cast<int64_t>(Context::kScratchBytes / sizeof(float4));
    blocks = std::min(blocks, room / o.partial_stride);
  }
  // A thread block a head leaves most of the GPU idle where heads are few or scratch is short. Seen
  // faster with 64 heads on 132 multiprocessors.
  if (9 * blocks < 4 * context.gpu().multiprocessors) return false;
  if (o.tokens > S::kKeys) o.partial = reinterpret_cast<float4*>(context.scratch(stream));
  o.queries = map_of_qkv(qkv, S::kQueries, 64);
  o.keys = map_of_qkv(qkv, S::kKeys, 64);
  o.dout = map_of_out(dout, 64);
  o.out = map_of_out(out, 64);
  o.dqkv = map_of_qkv(dqkv, 64, 64);
  o.gradients = as<uint4>(dqkv);
  o.lengths = as<const int>(lengths);
  o.lse = as<const float>(lse);
  o.scale = attention_scale(qkv);
  return visit_half(qkv.dtype, [&](auto tag) {
    launch(attention_hopper_backward_kernel<decltype(tag), S>, blocks, S::kThreads, S::kSharedBytes,
           stream, o);
    return true;
  });
}

}  // namespace

bool attention_backward_hopper(const TensorView& dout, const TensorView& qkv,
                               const TensorView& lengths, const TensorView& out,
                               const TensorView& lse, const TensorView& dqkv, Context& context,
                               Stream& stream) {
  if (context.gpu().sm != 90 || !tensor_cores_take(qkv, {&dout, &qkv, &out, &dqkv})) return false;
  // What a head size lacks to 64 or 128 the copy engine fills with zeros.
  return qkv.shape[4] > 64 ? launch_hopper_backward<HopperBackwardShape<128, 1>>(
                                 dout, qkv, lengths, out, lse, dqkv, context, stream)
                           : launch_hopper_backward<HopperBackwardShape<64, 2>>(
                                 dout, qkv, lengths, out, lse, dqkv, context, stream);
}

}  // namespace voltapile::cuda
