// What the files of fused attention share on the host. Operands are those of Kernels::attention and
// attention_backward, and have been checked; no function keeps the score matrix in global memory.
#pragma once
#include "voltapile/base/tensor_view.hpp"
#include "voltapile/device/device.hpp"

#include "context.hpp"

namespace voltapile::cuda {

// Volta's tensor cores, for Context::volta(); false, with nothing enqueued, where there is no
// kernel for the case.
bool attention_volta(const TensorView& qkv, const TensorView& lengths, const TensorView& out,
                     const TensorView& lse, Context& context, Stream& stream);
bool attention_backward_volta(const TensorView& dout, const TensorView& qkv,
                              const TensorView& lengths, const TensorView& out,
                              const TensorView& lse, const TensorView& dqkv, Context& context,
                              Stream& stream);

// Hopper's own matrix products and copies, f16 and bf16; false, with nothing enqueued, on another
// GPU, in a build without code for sm_90, or where there is no kernel for the case.
bool attention_hopper(const TensorView& qkv, const TensorView& lengths, const TensorView& out,
                      const TensorView& lse, Context& context, Stream& stream);
bool attention_backward_hopper(const TensorView& dout, const TensorView& qkv,
                               const TensorView& lengths, const TensorView& out,
                               const TensorView& lse, const TensorView& dqkv, Context& context,
                               Stream& stream);

// Tensor cores of sm_80 and later, f16 and bf16; false, with nothing enqueued, unless the head size
// is a multiple of 8 from 32 to 128 and all operands start on 16 bytes.
bool attention_tensor(const TensorView& qkv, const TensorView& lengths, const TensorView& out,
                      const TensorView& lse, Context& context, Stream& stream);
bool attention_backward_tensor(const TensorView& dout, const TensorView& qkv,
                               const TensorView& lengths, const TensorView& out,
                               const TensorView& lse, const TensorView& dqkv, Context& context,
                               Stream& stream);

// The same for one type, each in its own file; operands must be as attention_backward_tensor wants.
template <class T>
bool attention_backward_of(const TensorView& dout, const TensorView& qkv, const TensorView& lengths,
                           const TensorView& out, const TensorView& lse, const TensorView& dqkv,
                           Context& context, Stream& stream);

// Every other case: f16, bf16 or f32, computed in f32, head sizes to 256, any GPU.
void attention_plain(const TensorView& qkv, const TensorView& lengths, const TensorView& out,
                     const TensorView& lse, Stream& stream);
void attention_backward_plain(const TensorView& dout, const TensorView& qkv,
                              const TensorView& lengths, const TensorView& out,
                              const TensorView& lse, const TensorView& dqkv, Stream& stream);

}  // namespace voltapile::cuda
