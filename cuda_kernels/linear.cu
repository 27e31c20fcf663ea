#include "gemm.hpp"
#include "launch.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// 2^x; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Where the tail of the normal distribution, Phi(-|x|), is nothing in any type.
constexpr float kFarOut = 15.0f;

// e^(-z^2 / 2), 0 <= z <= kFarOut; relative error 5e-6 in the far tail, which the rounding of a
// 16-bit result hides, and 3e-7 for f32, where the exponent carries what its rounding loses.
template <class T>
__device__ __forceinline__ float bell(float z) {
  if constexpr (!std::is_same_v<T, float>) {
    const float u = z * 0.84932180028801904f;  // sqrt(log2(e) / 2)
    return exp2_fast(-u * u);
  } else {
    constexpr float kHalfLog2e = 0.72134752044448170f, kLn2 = 0.69314718055994531f;
    const float square = z * z, lost = fmaf(z, z, -square);
    const float exponent = -kHalfLog2e * square;
    const float rest = fmaf(-kHalfLog2e, lost, fmaf(-kHalfLog2e, square, -exponent));
    const float e = exp2_fast(exponent);
    return fmaf(e, rest * kLn2, e);
  }
}

// Phi(-z) / (e^(-z^2 / 2) t) = erfcx(z / sqrt 2) / (2 t) with t = 1 / (1 + kScale z): a polynomial
// in t, fitted for least relative error: 5e-6 for 16-bit types, 2e-7 for f32. So both tails keep
// their relative accuracy, at half of erfcf's instructions, with which GELU would not keep pace
// with memory.
template <class T>
struct TailFit {
  static constexpr float kScale = 0.31f;
  static __device__ __forceinline__ float at(float t) {
    float p = -0.0739293585f;
    p = fmaf(p, t, 0.180450985f);
    p = fmaf(p, t, 0.0157440117f);
    p = fmaf(p, t, 0.133430134f);
    p = fmaf(p, t, 0.120441199f);
    return fmaf(p, t, 0.123860708f);
  }
};
template <>
struct TailFit<float> {
  static constexpr float kScale = 0.23f;
  static __device__ __forceinline__ float at(float t) {
    float p = -0.0729929635f;
    p = fmaf(p, t, 0.264981724f);
    p = fmaf(p, t, -0.227980667f);
    p = fmaf(p, t, 0.246765069f);
    p = fmaf(p, t, 0.00313607523f);
    p = fmaf(p, t, 0.10483425f);
    p = fmaf(p, t, 0.0893650181f);
    return fmaf(p, t, 0.0918915821f);
  }
};

// gelu(x) = max(x, 0) - |x| Phi(-|x|)
template <class T>
__device__ __forceinline__ float gelu_at(float x) {
  const float z = fminf(fabsf(x), kFarOut);
  const float t = reciprocal_fast(fmaf(TailFit<T>::kScale, z, 1.0f));
  return fmaf(-(z * t * bell<T>(z)), TailFit<T>::at(t), x < 0 ? 0.0f : x);
}
// gelu'(x) = Phi(x) + x e^(-x^2 / 2) / sqrt(2 pi)
template <class T>
__device__ __forceinline__ float gelu_slope_at(float x) {
  const float z = fminf(fabsf(x), kFarOut);
  const float t = reciprocal_fast(fmaf(TailFit<T>::kScale, z, 1.0f)), e = bell<T>(z);
  const float tail = t * e * TailFit<T>::at(t);
  return fmaf(x * 0.39894228040143268f, e, x < 0 ? tail : 1.0f - tail);
}

enum class Activation { value, slope };

// value: out = gelu(pre); slope: out *= gelu'(pre). Reads pre and writes out once (slope reads it
// too): bound by memory, 2 or 3 times the tensor.
template <Activation kWhat, class T, int V, int kPacks>
__global__ void __launch_bounds__(kThreads)
    activation_kernel(const T* __restrict__ pre, T* __restrict__ out, int64_t packs, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kPacks + threadIdx.x;
  using P = Pack<T, V>;
  P x[kPacks], y[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t at = first + i * kThreads;
    if (at >= packs) continue;
    x[i] = reinterpret_cast<const P*>(pre)[at];
    if constexpr (kWhat == Activation::slope) y[i] = reinterpret_cast<const P*>(out)[at];
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t at = first + i * kThreads;
    if (at >= packs) continue;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float wide = widen(x[i].v[v]);
      if constexpr (kWhat == Activation::value) y[i].v[v] = narrow<T>(gelu_at<T>(wide));
      else y[i].v[v] = narrow<T>(widen(y[i].v[v]) * gelu_slope_at<T>(wide));
    }
    reinterpret_cast<P*>(out)[at] = y[i];
  }
  // What is left after whole packs.
  const int64_t rest = packs * V + threadIdx.x;
  if (blockIdx.x == 0 && rest < n) {
    const float wide = widen(pre[rest]);
    if constexpr (kWhat == Activation::value) out[rest] = narrow<T>(gelu_at<T>(wide));
    else out[rest] = narrow<T>(widen(out[rest]) * gelu_slope_at<T>(wide));
  }
}

template <Activation kWhat, class T>
void activate(const T* pre, T* out, int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  constexpr int kPacks = 4;
  const bool wide = aligned<kWide<T>>(pre) && aligned<kWide<T>>(out);
  const int64_t packs = wide ? n / kWide<T> : n;
  const unsigned blocks = blocks_for(packs, kThreads * kPacks);
  if (wide)
    activation_kernel<kWhat, T, kWide<T>, kPacks>
        <<<blocks, kThreads, 0, stream>>>(pre, out, packs, n);
  else activation_kernel<kWhat, T, 1, kPacks><<<blocks, kThreads, 0, stream>>>(pre, out, packs, n);
  VP_LAUNCHED();
}

// db (columns) += column sums of dy (rows, columns), read once: bound by memory. A block sums a
// slice of the rows of a tile of columns, its warps every kWarps-th row; the tile's last block to
// finish adds up the slices, in their order.
template <class T, int V>
__global__ void __launch_bounds__(kThreads, 3)
    column_sums_kernel(const T* __restrict__ dy, int64_t rows, int64_t columns, int64_t slice_rows,
                       float* __restrict__ slices, uint32_t* __restrict__ tickets,
                       float* __restrict__ db) {
  constexpr int kTile = 32 * V, kRows = 8;  // rows that a warp has under way
  using P = Pack<T, V>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t tile = int64_t{blockIdx.x} * kTile, column = tile + lane * V;
  const int64_t end = min(rows, (blockIdx.y + 1) * slice_rows);
  float total[V] = {};
  if (column < columns) {
    const T* at = dy + column;
    int64_t row = blockIdx.y * slice_rows + warp;
    for (; row + (kRows - 1) * kWarps < end; row += kRows * kWarps) {
      P x[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        x[i] = *reinterpret_cast<const P*>(at + (row + i * kWarps) * columns);
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int v = 0; v < V; ++v) total[v] += widen(x[i].v[v]);
    }
    for (; row < end; row += kWarps) {
      const P x = *reinterpret_cast<const P*>(at + row * columns);
#pragma unroll
      for (int v = 0; v < V; ++v) total[v] += widen(x.v[v]);
    }
  }
  __shared__ float sums[kWarps][kTile];
#pragma unroll
  for (int v = 0; v < V; ++v) sums[warp][lane * V + v] = total[v];
  __syncthreads();
  for (int i = threadIdx.x; i < kTile && tile + i < columns; i += kThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][i];
    slices[blockIdx.y * columns + tile + i] = sum;
  }
  __threadfence();
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(tickets + blockIdx.x, 1u) == gridDim.y - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int i = threadIdx.x; i < kTile && tile + i < columns; i += kThreads) {
    float sum = 0;
#pragma unroll 8
    for (unsigned s = 0; s < gridDim.y; ++s) sum += __ldcg(slices + s * columns + tile + i);
    db[tile + i] += sum;
  }
  if (threadIdx.x == 0) tickets[blockIdx.x] = 0;
}

template <class T, int V>
void add_column_sums(const T* dy, int64_t rows, int64_t columns, int multiprocessors, float* slices,
                     uint32_t* tickets, float* db, cudaStream_t stream) {
  // Two blocks a multiprocessor, and enough rows for each to be worth its end.
  constexpr int64_t kLeastRows = 64;
  const int64_t tiles = (columns + 32 * V - 1) / (32 * V);
  VP_CHECK(tiles <= MatrixProducts::kTickets, "column sums of {} columns", columns);
  const int64_t most = std::max<int64_t>(1, 2 * multiprocessors / tiles);
  const int64_t wanted = std::clamp<int64_t>(rows / kLeastRows, 1, most);
  const int64_t slice_rows = (rows + wanted - 1) / wanted;
  const int64_t count = (rows + slice_rows - 1) / slice_rows;
  VP_CHECK(static_cast<size_t>(count * columns) * sizeof(float) <= Context::kScratchBytes,
           "column sums of {} columns", columns);
  column_sums_kernel<T, V>
      <<<dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(count)), kThreads, 0, stream>>>(
          dy, rows, columns, slice_rows, slices, tickets, db);
  VP_LAUNCHED();
}

// Adds a number that depends on every element and its place, whatever the order of the blocks.
__global__ void __launch_bounds__(kThreads)
    checksum_kernel(const uint16_t* __restrict__ data, int64_t n, unsigned long long* sum) {
  unsigned long long total = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * kThreads) {
    // The finaliser of SplitMix64 (Steele, Lea, Flood, 2014).
    unsigned long long z = static_cast<unsigned long long>(i) << 16 | data[i];
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    total += z ^ (z >> 31);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    total += __shfl_xor_sync(0xffffffffu, total, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, total);
}

}  // namespace

void add_checksum(const void* data, int64_t bytes, uint64_t* sum, cudaStream_t stream) {
  checksum_kernel<<<blocks_for(bytes / 2, kThreads * 16, 4096), kThreads, 0, stream>>>(
      static_cast<const uint16_t*>(data), bytes / 2, reinterpret_cast<unsigned long long*>(sum));
  VP_LAUNCHED();
}

void CudaKernels::linear(TensorView x, TensorView w, TensorView b, TensorView y, Stream& stream) {
  shapes::linear("linear", x, w, b, y);
  products_->multiply({.factors = w.dtype,
                       .result = y.dtype,
                       .right = Layout::transposed,
                       .rows = x.rows(),
                       .columns = w.shape[0],
                       .inner = w.shape[1]},
                      {x.data, w.data, b.data, y.data}, stream);
}

void CudaKernels::linear_gelu(TensorView x, TensorView w, TensorView b, TensorView pre,
                              TensorView y, Stream& stream) {
  shapes::linear("linear_gelu", x, w, b, y);
  shapes::expect("linear_gelu", "pre", pre, y.dtype, y.elements());
  linear(x, w, b, pre.reshaped(y.shape), stream);
  gelu(pre, y, stream);
}

void CudaKernels::linear_backward_input(TensorView dy, TensorView w, TensorView dx,
                                        Stream& stream) {
  shapes::linear_backward_input("linear_backward_input", dy, w, dx);
  products_->multiply({.factors = w.dtype,
                       .result = dx.dtype,
                       .rows = dy.rows(),
                       .columns = w.shape[1],
                       .inner = w.shape[0]},
                      {dy.data, w.data, nullptr, dx.data}, stream);
}

void CudaKernels::linear_backward_input_gelu(TensorView dy, TensorView w, TensorView pre,
                                             TensorView dpre, Stream& stream) {
  shapes::linear_backward_input("linear_backward_input_gelu", dy, w, dpre);
  shapes::expect("linear_backward_input_gelu", "pre", pre, dpre.dtype, dpre.elements());
  linear_backward_input(dy, w, dpre, stream);
  visit(pre.dtype, [&](auto tag) {
    using T = decltype(tag);
    activate<Activation::slope>(as<const T>(pre), as<T>(dpre), pre.elements(), handle_of(stream));
  });
}

void CudaKernels::linear_backward_weight(TensorView dy, TensorView x, TensorView dw, TensorView db,
                                         Stream& stream) {
  shapes::linear_backward_weight(dy, x, dw, db);
  products_->multiply({.factors = x.dtype,
                       .result = dw.dtype,
                       .left = Layout::transposed,
                       .into = Into::accumulate,
                       .rows = dy.columns(),
                       .columns = x.columns(),
                       .inner = dy.rows()},
                      {dy.data, x.data, nullptr, dw.data}, stream);
  if (!db || dy.rows() == 0) return;
  visit(dy.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto add = [&]<int V>(std::integral_constant<int, V>) {
      add_column_sums<T, V>(as<const T>(dy), dy.rows(), dy.columns(),
                            context_.gpu().multiprocessors,
                            reinterpret_cast<float*>(context_.scratch(stream)),
                            products_->tickets(stream), as<float>(db), handle_of(stream));
    };
    if (dy.columns() % kWide<T> == 0 && aligned<kWide<T>>(as<const T>(dy)))
      add(std::integral_constant<int, kWide<T>>{});
    else add(std::integral_constant<int, 1>{});
  });
}

void CudaKernels::gelu(TensorView pre, TensorView y, Stream& stream) {
  shapes::expect("gelu", "y", y, pre.dtype, pre.elements());
  visit(pre.dtype, [&](auto tag) {
    using T = decltype(tag);
    activate<Activation::value>(as<const T>(pre), as<T>(y), pre.elements(), handle_of(stream));
  });
}

}  // namespace voltapile::cuda
