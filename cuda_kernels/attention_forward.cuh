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
template <class T, int kDim, int kTiles, bool kHoldQueries, bool kLazy>
class ForwardWarp {
 public:
  static constexpr int kStride = kDim + 8, kSteps = kDim / 16;

  // queries: this warp's rows of the tile, by the lane's offset.
  __device__ __forceinline__ ForwardWarp(uint32_t queries, float scale)
      : queries_(queries + LaneOffsets<kStride>::left()), scale_(scale * kLog2E) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) most_[t][0] = most_[t][1] = -INFINITY;
  }

  __device__ __forceinline__ void hold_queries() {
    if constexpr (kHoldQueries)
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int k = 0; k < kSteps; ++k) load_queries(held_[t][k], t, k);
  }

  // One block of 16 * kGroups keys, of which `valid` exist. `values_arrived` is called before the
  // values are read.
  template <int kGroups, bool kMasked, class F>
  __device__ __forceinline__ void step(uint32_t keys, uint32_t values, int valid,
                                       F&& values_arrived) {
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
    soften(s);
    values_arrived();
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
  // Scores to probabilities, not yet divided by their sum. What was summed so far is brought to a
  // new maximum only when a row's has grown by 2^8: until then its probabilities stay below 256.
  template <int kColumns>
  __device__ __forceinline__ void soften(float (&s)[kTiles][kColumns][4]) {
    float most[kTiles][2];
    bool grown = false;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float m = s[t][0][2 * half];
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
          m = fmaxf(m, fmaxf(s[t][n][2 * half], s[t][n][2 * half + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        grown |= (m - most_[t][half]) * scale_ > 8;
        most[t][half] = m;
      }
    if (!kLazy || __any_sync(0xffffffffu, grown))
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float m = fmaxf(most[t][half], most_[t][half]);
          const float shrink = exp2_fast((most_[t][half] - m) * scale_);
          most_[t][half] = m;
          total_[t][half] *= shrink;
#pragma unroll
          for (int d = 0; d < 2 * kSteps; ++d) {
            sums_[t][d][2 * half] *= shrink;
            sums_[t][d][2 * half + 1] *= shrink;
          }
        }
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shift = most_[t][half] * scale_;
        float total = 0;
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& p = s[t][n][2 * half + i];
            p = exp2_fast(fmaf(p, scale_, -shift));
            total += p;
          }
        total_[t][half] += total;
      }
  }

  uint32_t queries_;
  float scale_;
  Fragment held_[kHoldQueries ? kTiles : 1][kHoldQueries ? kSteps : 1];
  float sums_[kTiles][2 * kSteps][4] = {};
  float most_[kTiles][2], total_[kTiles][2] = {};
};
#endif

inline constexpr int forward_shared_bytes(int dim, int queries, int keys, int stages) {
  return (queries + 2 * stages * keys) * (dim + 8) * 2;
}

// One block of queries of one head; gridDim.x = B * H * blocks. kStages blocks of kKeys keys and
// values are in shared memory or on their way.
template <class T, int kDim, int kTiles, bool kHoldQueries, int kKeys, int kStages, int kWarps,
          int kBlocks, bool kLazy>
__global__ __launch_bounds__(kWarps * 32, kBlocks) void attention_forward_kernel(
    const __grid_constant__ ForwardOperands<T> o) {
#if VP_HAS_ASYNC_MMA
  constexpr int kStride = kDim + 8, kRows = 16 * kTiles, kQueries = kWarps * kRows;
  constexpr uint32_t kTileBytes = kKeys * kStride * 2;
  extern __shared__ __align__(16) unsigned char shared[];
  T* const query_tile = reinterpret_cast<T*>(shared);
  const uint32_t q_tile = shared_address(shared);
  const uint32_t ring = q_tile + kQueries * kStride * 2;

  const int block = blockIdx.x % o.blocks, head = blockIdx.x / o.blocks;
  const int64_t b = head / o.heads, h = head % o.heads;
  const int length = o.lengths ? o.lengths[b] : o.tokens;
  const int64_t out_stride = int64_t{o.heads} * o.dim, stride = 3 * out_stride;
  const T* const q = o.qkv + b * o.tokens * stride + h * o.dim;

  const int first = block * kQueries;
  const int warp = threadIdx.x / 32, own = first + warp * kRows;
  ForwardWarp<T, kDim, kTiles, kHoldQueries, kLazy> rows(q_tile + warp * kRows * kStride * 2,
                                                         o.scale);
  if (first < length) {
    const RowCopier<T, kDim, kWarps * 32> copier(o.dim);
    // Keys and values are two groups of copies, so that the first scores need not wait for values.
    const auto fetch = [&](int begin, int stage) {
      const T* const k = q + out_stride + begin * stride;
      const uint32_t tile = ring + stage * 2 * kTileBytes;
      if (begin < length) copier.template copy<kKeys>(tile, k, stride, length - begin);
      commit_copies();
      if (begin < length)
        copier.template copy<kKeys>(tile + kTileBytes, k + out_stride, stride, length - begin);
      commit_copies();
    };
    copier.template copy<kQueries>(q_tile, q + first * stride, stride, length - first);
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage * kKeys, stage);
    for (int begin = 0, stage = 0; begin < length; begin += kKeys) {
      if (begin == 0) wait_copies<2 * kStages - 3>();
      else wait_copies<2 * kStages - 4>();
      __syncthreads();
      fetch(begin + (kStages - 1) * kKeys, stage == 0 ? kStages - 1 : stage - 1);
      const uint32_t keys = ring + stage * 2 * kTileBytes, values = keys + kTileBytes;
      stage = stage + 1 == kStages ? 0 : stage + 1;
      const auto values_arrived = [&] {
        if (begin > 0) return;
        wait_copies<2 * kStages - 2>();
        __syncthreads();
      };
      if (own >= length) {
        values_arrived();
        continue;
      }
      if (begin == 0) rows.hold_queries();
      const int valid = length - begin;
      if (valid >= kKeys)
        rows.template step<kKeys / 16, false>(keys, values, kKeys, values_arrived);
      else if (valid > 32)
        rows.template step<kKeys / 16, true>(keys, values, valid, values_arrived);
      else if (valid > 16) rows.template step<2, true>(keys, values, valid, values_arrived);
      else rows.template step<1, true>(keys, values, valid, values_arrived);
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
