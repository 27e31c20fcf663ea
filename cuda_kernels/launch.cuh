// What kernels share: types, wide loads, reductions in a fixed order, launch checks. Included by
// .cu files only.
#pragma once
#include <algorithm>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "voltapile/base/philox.hpp"
#include "voltapile/base/tensor_view.hpp"
#include "voltapile/device/shapes.hpp"

#include "kernels.hpp"

// After every launch.
#define VP_LAUNCHED() VP_CUDA(cudaGetLastError())

namespace voltapile::cuda {

// Calls f with a value of the C++ type behind a working type.
template <class F>
void visit(DType type, F&& f) {
  switch (type) {
    case DType::f16: return f(__half{});
    case DType::bf16: return f(__nv_bfloat16{});
    case DType::f32: return f(float{});
    default:
      VP_CHECK(false, "the cuda device computes in f16, bf16 and f32, not {}", name_of(type));
  }
}
template <class T>
T* as(const TensorView& t) {
  return static_cast<T*>(t.data);  // null for an operand that is left out
}

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
template <class T>
__device__ __forceinline__ T narrow(float v);
template <>
__device__ __forceinline__ float narrow<float>(float v) {
  return v;
}
template <>
__device__ __forceinline__ __half narrow<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

// N numbers that are loaded and stored at once; the address must be a multiple of their size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
// Stores a pack in device memory with one instruction. The compiler takes a plain assignment of
// numbers just computed apart, in many places, into a store for each.
template <class T, int N>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
  if constexpr (sizeof(pack) == 16) {
    const uint4 raw = __builtin_bit_cast(uint4, pack);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(raw.x), "r"(raw.y),
                 "r"(raw.z), "r"(raw.w)
                 : "memory");
  } else if constexpr (sizeof(pack) == 8) {
    const uint2 raw = __builtin_bit_cast(uint2, pack);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(raw.x), "r"(raw.y) : "memory");
  } else if constexpr (sizeof(pack) == 4) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(__builtin_bit_cast(uint32_t, pack))
                 : "memory");
  } else {
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
  }
}
// Likewise a load, of what this kernel has not written before.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  if constexpr (sizeof(Pack<T, N>) == 16) {
    uint4 raw;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(from));
    return __builtin_bit_cast(Pack<T, N>, raw);
  } else if constexpr (sizeof(Pack<T, N>) == 8) {
    uint2 raw;
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(raw.x), "=r"(raw.y) : "l"(from));
    return __builtin_bit_cast(Pack<T, N>, raw);
  } else {
    return *reinterpret_cast<const Pack<T, N>*>(from);
  }
}
// Numbers in 16 bytes.
template <class T>
inline constexpr int kWide = 16 / sizeof(T);
// Whether packs of N start at the address.
template <int N, class T>
bool aligned(const T* address) {
  return reinterpret_cast<uintptr_t>(address) % (sizeof(T) * N) == 0;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}
// Sum over a block of kThreads threads, the same on every thread; `shared` has kThreads / 32 places
// and is free again after the next barrier.
template <int kThreads>
__device__ __forceinline__ float block_sum(float v, float* shared) {
  if constexpr (kThreads <= 32) return warp_sum(v);
  v = warp_sum(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) total += shared[i];
  return total;
}

inline unsigned blocks_for(int64_t work, int64_t per_block, int64_t most = int64_t{1} << 30) {
  return static_cast<unsigned>(std::clamp<int64_t>((work + per_block - 1) / per_block, 1, most));
}

}  // namespace voltapile::cuda
