// Which of the backward kernels runs, and how; included once for each type.
#pragma once
#include "attention.hpp"
#include "attention_backward_query.cuh"
#include "attention_launch.cuh"

namespace voltapile::cuda {

// The kernel's choices for a head size; measured on an H200 at 197, 256 and 257 tokens.
template <int kDim>
using BackwardShapeOf =
    std::conditional_t<kDim <= 64, BackwardShape<kDim, 2, 8, 64, 32>,
                       std::conditional_t<kDim == 80, BackwardShape<kDim, 1, 12, 48, 48>,
                                          BackwardShape<kDim, 1, 8, 64, 32>>>;
// The same with blocks of 32 queries, for the shared memory of sm_80 (163 KiB of a block).
template <int kDim>
using SmallBackwardShapeOf = BackwardShape<kDim, kDim <= 64 ? 2 : 1, 8, 32, 32>;

template <class T, class S>
bool launch_backward(BackwardOperands<T> o, Context& context, Stream& stream) {
  o.passes = (o.tokens + S::kKeys - 1) / S::kKeys;
  constexpr int bytes = S::kSharedBytes;
  if (static_cast<size_t>(bytes) > context.gpu().shared_bytes) return false;
  o.partial_stride = int64_t{o.tokens + S::kQueries - 1} / S::kQueries * S::kPartial;
  const int64_t grid = std::min(o.all_heads, context.gpu().multiprocessors);
  const bool fits =
      static_cast<size_t>(grid * o.partial_stride) * sizeof(float4) <= Context::kScratchBytes;
  // A thread block a head leaves most of the GPU idle where heads are few.
  const bool enough_heads = 2 * o.all_heads >= context.gpu().multiprocessors;
  o.with_queries = o.passes == 1 || (fits && enough_heads);
  if (o.passes > 1 && o.with_queries)
    o.partial = reinterpret_cast<float4*>(context.scratch(stream));
  launch(attention_backward_kernel<T, S>, o.with_queries ? grid : int64_t{o.all_heads} * o.passes,
         S::kWarps * 32, bytes, stream, o);
  if (o.with_queries) return true;
  const int blocks = (o.tokens + kQueryWarps * 16 - 1) / (kQueryWarps * 16);
  launch(attention_backward_query_kernel<T, S::kDim>, int64_t{o.all_heads} * blocks,
         kQueryWarps * 32, query_shared_bytes(S::kDim), stream, o, blocks);
  return true;
}

template <class T>
bool attention_backward_of(const TensorView& dout, const TensorView& qkv, const TensorView& lengths,
                           const TensorView& out, const TensorView& lse, const TensorView& dqkv,
                           Context& context, Stream& stream) {
  BackwardOperands<T> o{};
  o.dout = as<const T>(dout);
  o.qkv = as<const T>(qkv);
  o.lengths = as<const int>(lengths);
  o.out = as<const T>(out);
  o.lse = as<const float>(lse);
  o.dqkv = as<T>(dqkv);
  o.tokens = static_cast<int>(qkv.shape[1]);
  o.heads = static_cast<int>(qkv.shape[3]);
  o.dim = static_cast<int>(qkv.shape[4]);
  o.all_heads = static_cast<int>(qkv.shape[0] * qkv.shape[3]);
  o.scale = attention_scale(qkv);
  return visit_padded_dim(o.dim, [&](auto dim) {
    using Small = SmallBackwardShapeOf<dim()>;
    if (launch_backward<T, BackwardShapeOf<dim()>>(o, context, stream)) return true;
    if constexpr (BackwardShapeOf<dim()>::kTooLargeForSm80)
      return launch_backward<T, Small>(o, context, stream);
    return false;
  });
}

}  // namespace voltapile::cuda
