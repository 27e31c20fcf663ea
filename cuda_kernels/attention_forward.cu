// Which of the tensor-core kernels runs.
#include "attention.hpp"
#include "attention_forward.cuh"
#include "attention_launch.cuh"

namespace voltapile::cuda {
namespace {

// The kernel's choices for a head size; measured on an H200 at 197, 256 and 257 tokens.
template <int kTiles_, int kKeys_, int kStages_, int kWarps_, int kBlocks_, bool kHoldQueries_>
struct ForwardChoice {
  static constexpr int kTiles = kTiles_;  // of 16 queries a warp
  static constexpr int kKeys = kKeys_, kStages = kStages_, kWarps = kWarps_;
  static constexpr int kBlocks = kBlocks_;  // that a multiprocessor's registers suffice for
  static constexpr bool kHoldQueries = kHoldQueries_;
};
template <int kDim>
using ForwardShape =
    std::conditional_t<kDim <= 64, ForwardChoice<1, 64, 2, 8, 2, true>,
                       std::conditional_t<kDim == 80, ForwardChoice<1, 64, 2, 6, 2, true>,
                                          ForwardChoice<2, 32, 3, 4, 2, false>>>;

template <class T, int kDim>
void launch_forward(ForwardOperands<T> o, int64_t heads, Stream& stream) {
  using S = ForwardShape<kDim>;
  constexpr int kQueries = 16 * S::kTiles * S::kWarps;
  o.blocks = (o.tokens + kQueries - 1) / kQueries;
  launch(attention_forward_kernel<T, kDim, S::kTiles, S::kHoldQueries, S::kKeys, S::kStages,
                                  S::kWarps, S::kBlocks, true>,
         heads * o.blocks, S::kWarps * 32,
         forward_shared_bytes(kDim, kQueries, S::kKeys, S::kStages), stream, o);
}

}  // namespace

bool attention_tensor(const TensorView& qkv, const TensorView& lengths, const TensorView& out,
                      const TensorView& lse, Context&, Stream& stream) {
  if (!tensor_cores_take(qkv, {&qkv, &out})) return false;
  return visit_half(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    ForwardOperands<T> o{};
    o.qkv = as<const T>(qkv);
    o.lengths = as<const int>(lengths);
    o.out = as<T>(out);
    o.lse = as<float>(lse);
    o.tokens = static_cast<int>(qkv.shape[1]);
    o.heads = static_cast<int>(qkv.shape[3]);
    o.dim = static_cast<int>(qkv.shape[4]);
    o.scale = attention_scale(qkv);
    return visit_padded_dim(o.dim, [&](auto dim) {
      launch_forward<T, dim()>(o, qkv.shape[0] * qkv.shape[3], stream);
      return true;
    });
  });
}

bool attention_backward_tensor(const TensorView& dout, const TensorView& qkv,
                               const TensorView& lengths, const TensorView& out,
                               const TensorView& lse, const TensorView& dqkv, Context& context,
                               Stream& stream) {
  if (!tensor_cores_take(qkv, {&qkv, &out, &dout, &dqkv})) return false;
  return visit_half(qkv.dtype, [&](auto tag) {
    return attention_backward_of<decltype(tag)>(dout, qkv, lengths, out, lse, dqkv, context,
                                                stream);
  });
}

}  // namespace voltapile::cuda
