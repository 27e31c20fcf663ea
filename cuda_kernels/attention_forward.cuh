// Fused attention forward on tensor cores: a warp owns 16 * kTiles queries and passes over all
// keys, 64 at a time, with the online softmax of FlashAttention-2 (Dao 2023, algorithm 1). Reads
// qkv and writes out once from DRAM; keys and values come again from L2 for every further block of
// queries. Bound: tensor cores through mma.sync, and 16 exponentials a cycle and multiprocessor.
#pragma once
#include "attention_mma.cuh"

namespace voltapile::cuda {

template <class T>
struct ForwardOperands {
  const T* qkv;        // (B,T,3,H,D)
  const int* lengths;  // (B), or null
  T* out;              // (B,T,H,D)
  float* lse;          // (B,H,T)
  int tokens, heads, dim;
  int blocks;  // of queries
  float scale;
};

#if VP_HAS_ASYNC_MMA
// Rows [first, first + rows) of one head's matrix to a tile; zeros from row `end` on.
template <class T, int kDim>
__device__ __forceinline__ void load_rows(uint32_t tile, const T* from, int64_t stride, int first,
                                          int rows, int end, int dim) {
  constexpr int kPieces = kDim / 8, kStride = kDim + 8;
  for (int i = threadIdx.x; i < rows * kPieces; i += blockDim.x) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool wanted = first + row < end && piece * 8 < dim;
    copy16(tile + (row * kStride + piece * 8) * 2,
           wanted ? from + (first + row) * stride + piece * 8 : from, wanted);
  }
}

template <class T, int kDim, int kTiles, bool kHoldQueries>
class ForwardWarp {
 public:
  static constexpr int kStride = kDim + 8, kSteps = kDim / 16;

  // queries: this warp's rows of the tile, by the lane's offset.
  __device__ __forceinline__ ForwardWarp(uint32_t queries, float scale)
      : queries_(queries + LaneOffsets<kStride>::left()), scale_(scale * kLog2E) {}

  __device__ __forceinline__ void hold_queries() {
    if constexpr (kHoldQueries)
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int k = 0; k < kSteps; ++k) load_queries(held_[t][k], t, k);
  }

  // One block of 16 * kGroups keys, of which `valid` exist.
  template <int kGroups, bool kMasked>
  __device__ __forceinline__ void step(uint32_t keys, uint32_t values, int valid) {
    float s[kTiles][2 * kGroups][4] = {};
    keys += LaneOffsets<kStride>::right();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      Fragment a[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (kHoldQueries)
#pragma unroll
          for (int i = 0; i < 4; ++i) a[t][i] = held_[t][k][i];
        else load_queries(a[t], t, k);
      }
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        Fragment b;
        load_matrices(b, keys + (g * 16 * kStride + k * 16) * 2);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          multiply_add<T>(s[t][2 * g], a[t], b[0], b[1]);
          multiply_add<T>(s[t][2 * g + 1], a[t], b[2], b[3]);
        }
      }
    }
    if constexpr (kMasked) {
      const int column = threadIdx.x % 4 * 2;
#pragma unroll
      for (int n = 0; n < 2 * kGroups; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (n * 8 + column + i >= valid)
#pragma unroll
            for (int t = 0; t < kTiles; ++t) s[t][n][i] = s[t][n][2 + i] = -INFINITY;
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) soften<2 * kGroups>(s[t], t, half);

    values += LaneOffsets<kStride>::left();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      Fragment p[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) as_left_factor<T>(p[t], s[t][2 * g], s[t][2 * g + 1]);
#pragma unroll
      for (int d = 0; d < kSteps; ++d) {
        Fragment b;
        load_matrices_transposed(b, values + (g * 16 * kStride + d * 16) * 2);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          multiply_add<T>(sums_[t][2 * d], p[t], b[0], b[1]);
          multiply_add<T>(sums_[t][2 * d + 1], p[t], b[2], b[3]);
        }
      }
    }
  }

  // Rounds this warp's rows into `tile` (its own rows of the queries' tile) and writes their lse;
  // rows from `valid` on are padding.
  __device__ __forceinline__ void finish(T* tile, float* lse, int valid, int rows, float scale) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float total = total_[t][half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const int row = t * 16 + half * 8 + lane / 4;
        const float inverse = row < valid ? 1 / total : 0.0f;
        if (lane % 4 == 0 && row < rows)
          lse[row] = row < valid ? most_[t][half] * scale + logf(total) : 0.0f;
#pragma unroll
        for (int d = 0; d < 2 * kSteps; ++d)
          *reinterpret_cast<uint32_t*>(tile + row * kStride + d * 8 + lane % 4 * 2) =
              pack_pair<T>(sums_[t][d][2 * half] * inverse, sums_[t][d][2 * half + 1] * inverse);
      }
    __syncwarp();
  }

 private:
  __device__ __forceinline__ void load_queries(Fragment& a, int t, int k) {
    load_matrices(a, queries_ + (t * 16 * kStride + k * 16) * 2);
  }
  // Scores of one row (of this lane's two in tile t) to probabilities, not yet divided by their
  // sum.
  template <int kColumns>
  __device__ __forceinline__ void soften(float (&s)[kColumns][4], int t, int half) {
    float most = s[0][2 * half];
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
      most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    most = fmaxf(most, most_[t][half]);
    const float shift = most * scale_;
    const float shrink = exp2_fast(most_[t][half] * scale_ - shift);
    most_[t][half] = most;
    float total = total_[t][half] * shrink;
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& p = s[n][2 * half + i];
        p = exp2_fast(fmaf(p, scale_, -shift));
        total += p;
      }
    total_[t][half] = total;
#pragma unroll
    for (int d = 0; d < 2 * kSteps; ++d) {
      sums_[t][d][2 * half] *= shrink;
      sums_[t][d][2 * half + 1] *= shrink;
    }
  }

  uint32_t queries_;
  float scale_;
  Fragment held_[kHoldQueries ? kTiles : 1][kHoldQueries ? kSteps : 1];
  float sums_[kTiles][2 * kSteps][4] = {};
  float most_[kTiles][2] = {}, total_[kTiles][2] = {};

 public:
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) most_[t][0] = most_[t][1] = -INFINITY;
  }
};
#endif

inline constexpr int kForwardKeys = 64;
inline constexpr int forward_shared_bytes(int dim, int queries) {
  return (queries + 4 * kForwardKeys) * (dim + 8) * 2;
}

// One block of queries of one head; gridDim.x = B * H * blocks.
template <class T, int kDim, int kTiles, bool kHoldQueries>
__global__ __launch_bounds__(kTiles == 1 ? 512 : 256,
                             1) void attention_forward_kernel(const ForwardOperands<T> o) {
#if VP_HAS_ASYNC_MMA
  constexpr int kStride = kDim + 8, kKeys = kForwardKeys, kRows = 16 * kTiles;
  extern __shared__ __align__(16) unsigned char shared[];
  T* const query_tile = reinterpret_cast<T*>(shared);
  const int queries = static_cast<int>(blockDim.x) / 32 * kRows;
  const uint32_t q_tile = shared_address(shared);
  const uint32_t ring = q_tile + queries * kStride * 2;
  constexpr uint32_t kTileBytes = kKeys * kStride * 2;

  const int block = blockIdx.x % o.blocks, head = blockIdx.x / o.blocks;
  const int64_t b = head / o.heads, h = head % o.heads;
  const int length = o.lengths ? o.lengths[b] : o.tokens;
  const int64_t out_stride = int64_t{o.heads} * o.dim, stride = 3 * out_stride;
  const T* const q = o.qkv + b * o.tokens * stride + h * o.dim;
  const T* const k = q + out_stride;
  const T* const v = k + out_stride;

  const int first = block * queries;
  const int warp = threadIdx.x / 32, own = first + warp * kRows;
  ForwardWarp<T, kDim, kTiles, kHoldQueries> rows(q_tile + warp * kRows * kStride * 2, o.scale);
  rows.start();
  if (first < length) {
    load_rows<T, kDim>(q_tile, q, stride, first, queries, length, o.dim);
    load_rows<T, kDim>(ring, k, stride, 0, kKeys, length, o.dim);
    load_rows<T, kDim>(ring + kTileBytes, v, stride, 0, kKeys, length, o.dim);
    commit_copies();
    for (int begin = 0, stage = 0; begin < length; begin += kKeys, stage ^= 1) {
      wait_copies<0>();
      __syncthreads();
      if (begin + kKeys < length) {
        const uint32_t next = ring + (stage ^ 1) * 2 * kTileBytes;
        load_rows<T, kDim>(next, k, stride, begin + kKeys, kKeys, length, o.dim);
        load_rows<T, kDim>(next + kTileBytes, v, stride, begin + kKeys, kKeys, length, o.dim);
        commit_copies();
      }
      if (own >= length) continue;
      if (begin == 0) rows.hold_queries();
      const uint32_t keys = ring + stage * 2 * kTileBytes, values = keys + kTileBytes;
      const int valid = length - begin;
      if (valid >= kKeys) rows.template step<4, false>(keys, values, kKeys);
      else if (valid > 32) rows.template step<4, true>(keys, values, valid);
      else if (valid > 16) rows.template step<2, true>(keys, values, valid);
      else rows.template step<1, true>(keys, values, valid);
    }
  }
  if (own >= o.tokens) return;
  T* const tile = query_tile + warp * kRows * kStride;
  const int present = min(kRows, o.tokens - own);
  rows.finish(tile, o.lse + int64_t{head} * o.tokens + own, length - own, present, o.scale);
  T* const out = o.out + (b * o.tokens + own) * out_stride + h * o.dim;
  const int pieces = o.dim / 8;
  for (int i = threadIdx.x % 32; i < kRows * (kDim / 8); i += 32) {
    const int row = i / (kDim / 8), piece = i % (kDim / 8);
    if (row < present && piece < pieces)
      *reinterpret_cast<uint4*>(out + row * out_stride + piece * 8) =
          *reinterpret_cast<const uint4*>(tile + row * kStride + piece * 8);
  }
#endif
}

}  // namespace voltapile::cuda
