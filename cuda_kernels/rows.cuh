// What the kernels over rows of a matrix share: wide access, drop path, and the arithmetic of the
// residual branch and the norms, so that fused and separate operations give the same bits.
#pragma once
#include <initializer_list>

#include "launch.cuh"

namespace voltapile::cuda {

// Whether all operands (null: left out) can be read as whole packs of 16 bytes.
template <class T>
bool wide_rows(int64_t columns, std::initializer_list<const void*> operands) {
  if (columns % kWide<T> != 0) return false;
  return std::all_of(operands.begin(), operands.end(),
                     [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; });
}
// Calls f with the pack width as a constant: 16 bytes of numbers, or one number.
template <class T, class F>
void visit_width(bool wide, F&& f) {
  if (wide) f(std::integral_constant<int, kWide<T>>{});
  else f(std::integral_constant<int, 1>{});
}

template <class T, int N>
__device__ __forceinline__ Pack<T, N> load(const T* from) {
  Pack<T, N> pack;
  if constexpr (sizeof(pack) == 16)
    *reinterpret_cast<uint4*>(&pack) = *reinterpret_cast<const uint4*>(from);
  else pack = *reinterpret_cast<const Pack<T, N>*>(from);
  return pack;
}
// Of what a kernel reads once: leaves the first-level cache to gamma and beta, which every row
// reads.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> load_once(const T* from) {
  if constexpr (sizeof(Pack<T, N>) == 16) {
    Pack<T, N> pack;
    uint4& raw = *reinterpret_cast<uint4*>(&pack);
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(from));
    return pack;
  } else {
    return load<T, N>(from);
  }
}
// Of what no kernel in flight writes (parameters): may move ahead of stores.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> load_constant(const T* from) {
  Pack<T, N> pack;
  if constexpr (sizeof(pack) == 16)
    *reinterpret_cast<uint4*>(&pack) = __ldg(reinterpret_cast<const uint4*>(from));
  else pack.v[0] = __ldg(from);
  return pack;
}
template <class T, int N>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& pack) {
  if constexpr (sizeof(pack) == 16)
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&pack);
  else *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Keeps the compiler from holding a loop's constant pack widened, in twice the registers.
template <class T, int N>
__device__ __forceinline__ void keep_packed(Pack<T, N>& pack) {
  if constexpr (sizeof(pack) == 16) {
    auto* words = reinterpret_cast<uint32_t*>(pack.v);
    asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
  }
}

// index / extent: a 64-bit division costs several times a 32-bit one.
__device__ __forceinline__ int64_t divided(int64_t index, int64_t extent) {
  if (((index | extent) >> 32) == 0)
    return static_cast<uint32_t>(index) / static_cast<uint32_t>(extent);
  return index / extent;
}

// What a row's branch is multiplied with: 0 or 1 / (1 - rate), as DropPath in kernels.hpp says.
struct Keep {
  DropPath drop;
  float factor;

  explicit Keep(const DropPath& d) : drop(d), factor(1 / (1 - d.rate)) {}
  __device__ __forceinline__ float operator()(int64_t row) const {
    if (drop.rate == 0) return 1;
    const int64_t sample = drop.state->inputs.first_sample + drop.sample_offset +
                           divided(drop.row_offset + row, drop.rows_per_sample);
    const auto words =
        random_words(drop.seed, Purpose::drop_path, drop.item, static_cast<uint64_t>(sample));
    return uniform01(words[0]) >= drop.rate ? factor : 0;
  }
};

// The branch's pack at `column`: x + keep * scale * (branch + bias); null bias, scale: left out.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> residual_pack(const Pack<T, N>& x, const Pack<T, N>& branch,
                                                    const T* bias, const T* scale, float keep,
                                                    int64_t column) {
  Pack<T, N> add{}, times{}, y;
  if (bias) add = load_constant<T, N>(bias + column);
  if (scale) times = load_constant<T, N>(scale + column);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float side = bias ? widen(branch.v[i]) + widen(add.v[i]) : widen(branch.v[i]);
    const float factor = scale ? keep * widen(times.v[i]) : keep;
    y.v[i] = narrow<T>(fmaf(factor, side, widen(x.v[i])));
  }
  return y;
}
template <class T, int N>
__device__ __forceinline__ Pack<T, N> normalised_pack(const float (&x)[N], float mean, float rstd,
                                                      const T* gamma, const T* beta,
                                                      int64_t column) {
  const Pack<T, N> times = load_constant<T, N>(gamma + column),
                   add = load_constant<T, N>(beta + column);
  Pack<T, N> y;
#pragma unroll
  for (int i = 0; i < N; ++i)
    y.v[i] = narrow<T>(fmaf((x[i] - mean) * rstd, widen(times.v[i]), widen(add.v[i])));
  return y;
}
__device__ __forceinline__ float rstd_of(float squares, int64_t columns, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(columns) + eps);
}

// Sum over a block of any whole number of warps, the same on every thread. `shared` has 32 places,
// and may be used again after another barrier: alternate between two.
__device__ __forceinline__ float block_sum(float v, float* shared) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f);
}

// One operation for every pack of a matrix, in any order: Op{}(row, column). At memory speed.
template <int kWidth, class Op>
__global__ void __launch_bounds__(256) each_pack_kernel(Op op, int64_t packs, int64_t in_row) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const int64_t row = divided(i, in_row);
  op.template pack<kWidth>(row, (i - row * in_row) * kWidth);
}
template <int kWidth, class Op>
void each_pack(const Op& op, int64_t rows, int64_t columns, cudaStream_t stream) {
  const int64_t packs = rows * columns / kWidth;
  if (packs == 0) return;
  each_pack_kernel<kWidth><<<blocks_for(packs, 256), 256, 0, stream>>>(op, packs, columns / kWidth);
  VP_LAUNCHED();
}

}  // namespace voltapile::cuda
