// dQ alone, for sequences whose keys take more passes than a thread block can keep dQ for: a warp
// owns 16 queries and passes over all keys, kQueryKeys at a time, as in the forward pass. Together
// with dK and dV from attention_backward.cuh this makes the scores twice (7 products for 5).
// Bound: tensor cores through mma.sync and shared-memory reads of their factors.
#pragma once
#include "attention_backward.cuh"
#include "attention_forward.cuh"

namespace voltapile::cuda {

inline constexpr int kQueryKeys = 32;
inline constexpr int kQueryWarps = 8;
inline constexpr int query_shared_bytes(int dim) {
  return (2 * kQueryWarps * 16 + 4 * kQueryKeys) * (dim + 8) * 2;
}

#if VP_HAS_ASYNC_MMA
template <class T, int kDim>
class QueryWarp {
 public:
  static constexpr int kStride = kDim + 8, kSteps = kDim / 16, kColumns = kQueryKeys / 8;

  // Addresses of this warp's rows of Q and dO.
  __device__ __forceinline__ QueryWarp(uint32_t queries, uint32_t douts, float scale)
      : queries_(queries + LaneOffsets<kStride>::left()),
        douts_(douts + LaneOffsets<kStride>::left()),
        scale_(scale * kLog2E) {}

  // dout: this warp's rows in shared memory; out: the same in global memory; `valid` rows exist.
  __device__ __forceinline__ void start(const T* dout, const T* out, int64_t out_stride,
                                        const float* lse, int valid, int dim) {
    const int lane = threadIdx.x % 32, row = lane / 2;
    float sum = 0;
    if (row < valid)
      for (int piece = lane % 2; piece * 8 < dim; piece += 2) {
        const auto a = *reinterpret_cast<const Pack<T, 8>*>(dout + row * kStride + piece * 8);
        const auto b = *reinterpret_cast<const Pack<T, 8>*>(out + row * out_stride + piece * 8);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum = fmaf(widen(a.v[j]), widen(b.v[j]), sum);
      }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = lane / 4 + 8 * half;
      less_[half] = -__shfl_sync(0xffffffffu, sum, 2 * own);
      lse_[half] = own < valid ? lse[own] * kLog2E : INFINITY;
    }
  }

  template <bool kMasked>
  __device__ __forceinline__ void step(uint32_t keys, uint32_t values, int valid) {
    float s[kColumns][4] = {}, dp[kColumns][4];
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = less_[i / 2];
    multiply(s, queries_, keys + LaneOffsets<kStride>::right());
    multiply(dp, douts_, values + LaneOffsets<kStride>::right());
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = exp2_fast(fmaf(s[n][i], scale_, -lse_[i / 2]));
        s[n][i] = kMasked && n * 8 + column + i % 2 >= valid ? 0.0f : p * dp[n][i];
      }
    keys += LaneOffsets<kStride>::left();
#pragma unroll
    for (int g = 0; g < kColumns / 2; ++g) {
      Fragment a;
      as_left_factor<T>(a, s[2 * g], s[2 * g + 1]);
#pragma unroll
      for (int d = 0; d < kSteps; ++d) {
        Fragment b;
        load_matrices_transposed(b, keys + (g * 16 * kStride + d * 16) * 2);
        multiply_add<T>(sums_[2 * d], a, b[0], b[1]);
        multiply_add<T>(sums_[2 * d + 1], a, b[2], b[3]);
      }
    }
  }

  // Into this warp's rows of Q's tile, which all its lanes have read.
  __device__ __forceinline__ void stage(T* tile, float scale) const {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n)
        *reinterpret_cast<uint32_t*>(tile + (lane / 4 + 8 * half) * kStride + n * 8 +
                                     lane % 4 * 2) =
            pack_pair<T>(sums_[n][2 * half] * scale, sums_[n][2 * half + 1] * scale);
    __syncwarp();
  }

 private:
  // result (queries x keys) += left (queries x dims) right (keys x dims)^T
  __device__ __forceinline__ void multiply(float (&result)[kColumns][4], uint32_t left,
                                           uint32_t right) const {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      Fragment a;
      load_matrices(a, left + k * 32);
#pragma unroll
      for (int g = 0; g < kColumns / 2; ++g) {
        Fragment b;
        load_matrices(b, right + (g * 16 * kStride + k * 16) * 2);
        multiply_add<T>(result[2 * g], a, b[0], b[1]);
        multiply_add<T>(result[2 * g + 1], a, b[2], b[3]);
      }
    }
  }

  uint32_t queries_, douts_;
  float scale_;
  float lse_[2], less_[2];
  float sums_[2 * kSteps][4] = {};
};
#endif

// One block of queries of one head; gridDim.x = B * H * blocks.
template <class T, int kDim>
__global__ __launch_bounds__(kQueryWarps * 32, 2) void attention_backward_query_kernel(
    const __grid_constant__ BackwardOperands<T> o, const int blocks) {
#if VP_HAS_ASYNC_MMA
  constexpr int kStride = kDim + 8, kRows = kQueryWarps * 16;
  constexpr uint32_t kTileBytes = kQueryKeys * kStride * 2;
  extern __shared__ __align__(16) unsigned char shared[];
  T* const query_tile = reinterpret_cast<T*>(shared);
  T* const dout_tile = query_tile + kRows * kStride;
  const uint32_t q_tile = shared_address(query_tile), d_tile = shared_address(dout_tile);
  const uint32_t ring = d_tile + kRows * kStride * 2;

  const int block = blockIdx.x % blocks, head = blockIdx.x / blocks;
  const int64_t b = head / o.heads, h = head % o.heads;
  const int length = o.lengths ? o.lengths[b] : o.tokens;
  const int64_t out_stride = int64_t{o.heads} * o.dim, stride = 3 * out_stride;
  const int64_t in_at = b * o.tokens * stride + h * o.dim;
  const int64_t out_at = b * o.tokens * out_stride + h * o.dim;
  const T* const k = o.qkv + in_at + out_stride;

  const int first = block * kRows, own = first + threadIdx.x / 32 * 16;
  const int at = threadIdx.x / 32 * 16 * kStride;  // this warp's rows of a tile
  QueryWarp<T, kDim> rows(q_tile + at * 2, d_tile + at * 2, o.scale);
  if (first < length) {
    const RowCopier<T, kDim, kQueryWarps * 32> copier(o.dim);
    const auto fetch = [&](int begin, uint32_t tile) {
      copier.template copy<kQueryKeys>(tile, k + begin * stride, stride, length - begin);
      copier.template copy<kQueryKeys>(tile + kTileBytes, k + out_stride + begin * stride, stride,
                                       length - begin);
      commit_copies();
    };
    copier.template copy<kRows>(q_tile, o.qkv + in_at + first * stride, stride, length - first);
    copier.template copy<kRows>(d_tile, o.dout + out_at + first * out_stride, out_stride,
                                length - first);
    fetch(0, ring);
    for (int begin = 0, stage = 0; begin < length; begin += kQueryKeys, stage ^= 1) {
      wait_copies<0>();
      __syncthreads();
      if (begin + kQueryKeys < length)
        fetch(begin + kQueryKeys, ring + (stage ^ 1) * 2 * kTileBytes);
      if (own >= length) continue;
      if (begin == 0)
        rows.start(dout_tile + at, o.out + out_at + own * out_stride, out_stride,
                   o.lse + int64_t{head} * o.tokens + own, length - own, o.dim);
      const uint32_t keys = ring + stage * 2 * kTileBytes;
      const int valid = length - begin;
      if (valid >= kQueryKeys) rows.template step<false>(keys, keys + kTileBytes, valid);
      else rows.template step<true>(keys, keys + kTileBytes, valid);
    }
  }
  if (own >= o.tokens) return;
  rows.stage(query_tile + at, o.scale);
  T* const to = o.dqkv + in_at + own * stride;
  for (int i = threadIdx.x % 32; i < 16 * (kDim / 8); i += 32) {
    const int row = i / (kDim / 8), piece = i % (kDim / 8);
    if (own + row < o.tokens && piece * 8 < o.dim)
      *reinterpret_cast<uint4*>(to + row * stride + piece * 8) =
          *reinterpret_cast<const uint4*>(query_tile + at + row * kStride + piece * 8);
  }
#endif
}

}  // namespace voltapile::cuda
