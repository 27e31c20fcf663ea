// Host code that the tensor-core kernels of attention share.
#pragma once
#include <cmath>
#include <initializer_list>

#include "launch.cuh"

namespace voltapile::cuda {

// Whether head size, type and alignment are what the tensor-core kernels want.
inline bool tensor_cores_take(const TensorView& qkv, std::initializer_list<const TensorView*> all) {
  const int64_t dim = qkv.shape[4];
  if (qkv.dtype != DType::f16 && qkv.dtype != DType::bf16) return false;
  if (dim < 32 || dim > 128 || dim % 8 != 0) return false;
  return std::all_of(all.begin(), all.end(), [](const TensorView* t) {
    return reinterpret_cast<uintptr_t>(t->data) % 16 == 0;
  });
}
inline float attention_scale(const TensorView& qkv) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(qkv.shape[4])));
}
template <class F>
bool visit_half(DType type, F&& f) {
  return type == DType::f16 ? f(__half{}) : f(__nv_bfloat16{});
}
// Calls f(integral_constant of the head size, padded to a multiple of 16).
template <class F>
bool visit_padded_dim(int64_t dim, F&& f) {
  switch ((dim + 15) / 16 * 16) {
    case 32: return f(std::integral_constant<int, 32>{});
    case 48: return f(std::integral_constant<int, 48>{});
    case 64: return f(std::integral_constant<int, 64>{});
    case 80: return f(std::integral_constant<int, 80>{});
    case 96: return f(std::integral_constant<int, 96>{});
    case 112: return f(std::integral_constant<int, 112>{});
    case 128: return f(std::integral_constant<int, 128>{});
    default: return false;
  }
}

template <class Kernel, class... Arguments>
void launch(Kernel kernel, int64_t blocks, int threads, int shared_bytes, Stream& stream,
            const Arguments&... arguments) {
  if (blocks == 0) return;
  VP_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, handle_of(stream)>>>(arguments...);
  VP_LAUNCHED();
}

}  // namespace voltapile::cuda
