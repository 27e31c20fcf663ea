#include "attention.hpp"
#include "launch.cuh"

namespace voltapile::cuda {

void CudaKernels::attention(TensorView qkv, TensorView lengths, TensorView out, TensorView lse,
                            Stream& stream) {
  shapes::attention(qkv, lengths, out, lse);
  const bool done = context_.volta()
                        ? attention_volta(qkv, lengths, out, lse, context_, stream)
                        : attention_hopper(qkv, lengths, out, lse, context_, stream) ||
                              attention_tensor(qkv, lengths, out, lse, context_, stream);
  if (!done) attention_plain(qkv, lengths, out, lse, stream);
}

void CudaKernels::attention_backward(TensorView dout, TensorView qkv, TensorView lengths,
                                     TensorView out, TensorView lse, TensorView dqkv,
                                     Stream& stream) {
  shapes::attention_backward(dout, qkv, lengths, out, lse, dqkv);
  const bool done =
      context_.volta()
          ? attention_backward_volta(dout, qkv, lengths, out, lse, dqkv, context_, stream)
          : attention_backward_hopper(dout, qkv, lengths, out, lse, dqkv, context_, stream) ||
                attention_backward_tensor(dout, qkv, lengths, out, lse, dqkv, context_, stream);
  if (!done) attention_backward_plain(dout, qkv, lengths, out, lse, dqkv, stream);
}

}  // namespace voltapile::cuda
