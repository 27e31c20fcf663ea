// Fused attention backward on tensor cores, without atomics (Dao 2023, algorithm 2, with dQ made on
// chip). A thread block owns one head. A pass over its keys gives every warp 16 * kTiles keys: it
// holds their dK and dV in registers while blocks of kQueries queries go by, and works on the
// transposed scores, so that P^T and dS^T are left factors straight from registers. dS^T also goes
// through shared memory, where the keys of all warps meet: dQ of a block of queries is one product
// over the pass's keys. What more than one pass adds to dQ waits in the block's own memory in L2.
// Bound: shared-memory reads of the tensor cores' factors; DRAM sees each operand once.
#pragma once
#include "attention_backward_operands.cuh"

namespace voltapile::cuda {

#if VP_HAS_ASYNC_MMA
template <class T, class S>
class BackwardBlock {
  static constexpr int kDim = S::kDim, kStride = S::kStride, kSteps = kDim / 16;
  static constexpr int kQueries = S::kQueries, kChunk = S::kChunk, kTiles = S::kTiles;
  static constexpr int kRows = 16 * kTiles, kScoreStride = S::kScoreStride;
  static constexpr uint32_t kTileBytes = kQueries * kStride * 2;
  static constexpr uint32_t kScoreBytes = S::kKeys * kScoreStride * 2;
  using Copier = RowCopier<T, kDim, S::kWarps * 32>;

  // Some keys of a head.
  struct Pass {
    int head, length, first_key, keys;
    int64_t in_at, out_at;  // the head's first element in qkv and in out
  };

 public:
  __device__ __forceinline__ BackwardBlock(const BackwardOperands<T>& o, unsigned char* shared)
      : o_(o), shared_(shared), copier_(o.dim) {
    keys_ = shared_address(shared);
    values_ = keys_ + S::kKeys * kStride * 2;
    ring_ = values_ + S::kKeys * kStride * 2;
    outs_ = ring_ + 4 * kTileBytes;
    scores_ = outs_ + kQueries * kDim * 2;
    row_sums_ = scores_ + 2 * kScoreBytes;
    out_stride_ = int64_t{o.heads} * o.dim;
    stride_ = 3 * out_stride_;
    own_ = threadIdx.x / 32 * kRows;
  }

  // All passes of heads blockIdx.x, + gridDim.x, ...; without dQ, one pass of one head. While a
  // block of queries is worked on, the next one is copied; at a pass's end, the next pass's keys.
  __device__ __forceinline__ void run() {
    pass_ = o_.with_queries ? pass_of(blockIdx.x, 0)
                            : pass_of(blockIdx.x / o_.passes, blockIdx.x % o_.passes * S::kKeys);
    if (pass_.keys > 0) {
      load_keys(pass_, keys_, out_stride_);
      load_keys(pass_, values_, 2 * out_stride_);
      load_block(pass_, 0, turn_);
      wait_copies<0>();
      finish_rows(0, turn_);
      __syncthreads();
    }
    while (pass_.keys > 0) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int n = 0; n < 2 * kSteps; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) dk_[t][n][i] = dv_[t][n][i] = 0;
      const int blocks = (pass_.length + kQueries - 1) / kQueries;
      for (int block = 0; block < blocks; ++block, turn_ ^= 1) {
        if (block + 1 < blocks) load_block(pass_, block + 1, turn_ ^ 1);
        if (block > 0 && o_.with_queries) query_gradient(block - 1, turn_ ^ 1);
        if (own_ < pass_.keys) {
#pragma unroll 1
          for (int chunk = 0; chunk < kQueries; chunk += kChunk)
            if (block * kQueries + chunk < pass_.length) scores(chunk);
        }
        if (block + 1 < blocks) {
          wait_copies<0>();
          finish_rows(block + 1, turn_ ^ 1);
        }
        __syncthreads();
      }
      // Nobody reads V, Q or dO of this pass any more.
      const Pass next = following();
      if (next.keys > 0) {
        load_keys(next, values_, 2 * out_stride_);
        load_block(next, 0, turn_);
      }
      if (o_.with_queries) query_gradient(blocks - 1, turn_ ^ 1);
      if (next.keys > 0) {
        __syncthreads();
        load_keys(next, keys_, out_stride_);
      }
      store_keys();
      if (pass_.first_key == 0) clear_padding();
      pass_ = next;
      if (pass_.keys <= 0) break;
      wait_copies<0>();
      finish_rows(0, turn_);
      __syncthreads();
    }
  }

 private:
  __device__ __forceinline__ Pass pass_of(int head, int first_key) const {
    const int64_t b = head / o_.heads, h = head % o_.heads;
    Pass p;
    p.head = head;
    p.length = o_.lengths ? o_.lengths[b] : o_.tokens;
    p.first_key = first_key;
    p.keys = min(S::kKeys, p.length - first_key);
    p.in_at = b * o_.tokens * stride_ + h * o_.dim;
    p.out_at = b * o_.tokens * out_stride_ + h * o_.dim;
    return p;
  }
  // The pass after pass_; one without keys at the end.
  __device__ __forceinline__ Pass following() const {
    Pass p = pass_;
    p.head = -1;
    p.keys = 0;
    if (!o_.with_queries) return p;
    if (!last_pass()) return pass_of(pass_.head, pass_.first_key + S::kKeys);
    if (pass_.head + static_cast<int>(gridDim.x) < o_.all_heads)
      return pass_of(pass_.head + gridDim.x, 0);
    return p;
  }
  __device__ __forceinline__ bool last_pass() const {
    return pass_.first_key + S::kKeys >= pass_.length;
  }

  // The keys or values of a pass.
  __device__ __forceinline__ void load_keys(const Pass& p, uint32_t tile, int64_t part) const {
    copier_.template copy<S::kKeys>(tile, o_.qkv + p.in_at + part + p.first_key * stride_, stride_,
                                    p.keys);
    commit_copies();
  }
  // Q, dO and O of a block of queries, and its lse. finish_rows() by the same thread reads what it
  // copied.
  __device__ __forceinline__ void load_block(const Pass& p, int block, int turn) const {
    const uint32_t q = ring_ + turn * 2 * kTileBytes;
    const int first = block * kQueries, valid = p.length - first;
    const int64_t out_at = p.out_at + first * out_stride_;
    copier_.template copy<kQueries>(q, o_.qkv + p.in_at + first * stride_, stride_, valid);
    copier_.template copy<kQueries>(q + kTileBytes, o_.dout + out_at, out_stride_, valid);
    if (copier_.piece < Copier::kPieces) {
      const uint32_t lse = row_sums_ + turn * kQueries * 8;
      const float* const lse_from = o_.lse + int64_t{p.head} * o_.tokens + first;
      const T* out_from = o_.out + out_at + copier_.row * out_stride_ + copier_.piece * 8;
      copier_.template for_rows<kQueries>([&](int r) {
        copy16(outs_ + (r * kDim + copier_.piece * 8) * 2, out_from, copier_.filled && r < valid);
        out_from += Copier::kStep * out_stride_;
        if (copier_.piece == 0) copy4(lse + r * 4, lse_from + r, r < valid);
      });
    }
    commit_copies();
  }
  // lse in powers of two (infinite for padding, which makes its probabilities zero), and
  // -rowsum(dO * O).
  __device__ __forceinline__ void finish_rows(int block, int turn) const {
    const unsigned char* const dout_tile =
        shared_ + (ring_ - keys_) + (turn * 2 + 1) * kTileBytes + copier_.piece * 16;
    const unsigned char* const out_tile = shared_ + (outs_ - keys_) + copier_.piece * 16;
    float* const lse =
        reinterpret_cast<float*>(shared_ + (row_sums_ - keys_)) + turn * 2 * kQueries;
    copier_.template for_rows<kQueries>([&](int r) {
      float sum = 0;
      if (copier_.piece < Copier::kPieces) {
        const auto a = *reinterpret_cast<const Pack<T, 8>*>(dout_tile + r * kStride * 2);
        const auto b = *reinterpret_cast<const Pack<T, 8>*>(out_tile + r * kDim * 2);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum = fmaf(widen(a.v[j]), widen(b.v[j]), sum);
      }
#pragma unroll
      for (int offset = Copier::kLanes / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      if (copier_.piece == 0) {
        lse[r] = block * kQueries + r < pass_.length ? lse[r] * kLog2E : INFINITY;
        lse[kQueries + r] = -sum;
      }
    });
  }

  // This warp's keys against queries [chunk, chunk + kChunk) of the block.
  __device__ __forceinline__ void scores(int chunk) {
    constexpr int kGroups = kChunk / 16;
    const int lane = threadIdx.x % 32;
    const uint32_t left = LaneOffsets<kStride>::left(), right = LaneOffsets<kStride>::right();
    const uint32_t q = ring_ + turn_ * 2 * kTileBytes + chunk * kStride * 2;
    const uint32_t dout = q + kTileBytes;
    const float* const lse = reinterpret_cast<const float*>(shared_ + (row_sums_ - keys_)) +
                             turn_ * 2 * kQueries + chunk + lane % 4 * 2;
    float s[kTiles][2 * kGroups][4] = {}, dp[kTiles][2 * kGroups][4];
    product(s, keys_ + own_ * kStride * 2 + left, q + right);
    const float scale = o_.scale * kLog2E;
#pragma unroll
    for (int n = 0; n < 2 * kGroups; ++n) {
      const float2 shift = *reinterpret_cast<const float2*>(lse + n * 8);
      const float2 less = *reinterpret_cast<const float2*>(lse + kQueries + n * 8);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[t][n][i] = exp2_fast(fmaf(s[t][n][i], scale, i % 2 ? -shift.y : -shift.x));
          dp[t][n][i] = i % 2 ? less.y : less.x;
        }
    }
    if (own_ + kRows > pass_.keys) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (own_ + t * 16 + half * 8 + lane / 4 >= pass_.keys)
#pragma unroll
            for (int n = 0; n < 2 * kGroups; ++n) s[t][n][2 * half] = s[t][n][2 * half + 1] = 0;
    }
    product(dp, values_ + own_ * kStride * 2 + left, dout + right);
    Fragment factor[kTiles][kGroups];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        as_left_factor<T>(factor[t][g], s[t][2 * g], s[t][2 * g + 1]);
    accumulate(dv_, factor, dout + left);
    unsigned char* const store = shared_ + (scores_ - keys_) + turn_ * kScoreBytes +
                                 ((own_ + lane / 4) * kScoreStride + chunk + lane % 4 * 2) * 2;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int n = 2 * g; n < 2 * g + 2; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) s[t][n][i] *= dp[t][n][i];
        as_left_factor<T>(factor[t][g], s[t][2 * g], s[t][2 * g + 1]);
        if (o_.with_queries)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            *reinterpret_cast<uint32_t*>(
                store + ((t * 16 + i % 2 * 8) * kScoreStride + g * 16 + i / 2 * 8) * 2) =
                factor[t][g][i];
      }
    accumulate(dk_, factor, q + left);
  }
  // result (keys x queries) += left (keys x dims) right (queries x dims)^T
  template <int kColumns>
  __device__ __forceinline__ void product(float (&result)[kTiles][kColumns][4], uint32_t left,
                                          uint32_t right) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      Fragment a[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) load_matrices(a[t], left + (t * 16 * kStride + k * 16) * 2);
#pragma unroll
      for (int g = 0; g < kColumns / 2; ++g) {
        Fragment b;
        load_matrices(b, right + (g * 16 * kStride + k * 16) * 2);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          multiply_add<T>(result[t][2 * g], a[t], b[0], b[1]);
          multiply_add<T>(result[t][2 * g + 1], a[t], b[2], b[3]);
        }
      }
    }
  }
  // sums (keys x dims) += factor (keys x queries) right (queries x dims)
  template <int kGroups>
  __device__ __forceinline__ void accumulate(float (&sums)[kTiles][2 * kSteps][4],
                                             const Fragment (&factor)[kTiles][kGroups],
                                             uint32_t right) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int d = 0; d < kSteps; ++d) {
        Fragment b;
        load_matrices_transposed(b, right + (g * 16 * kStride + d * 16) * 2);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          multiply_add<T>(sums[t][2 * d], factor[t][g], b[0], b[1]);
          multiply_add<T>(sums[t][2 * d + 1], factor[t][g], b[2], b[3]);
        }
      }
  }

  // dQ (queries x dims) of a block from dS^T (keys x queries) of all warps and K.
  __device__ __forceinline__ void query_gradient(int block, int turn) const {
    constexpr int kUnit = S::kUnit, kUnitRows = S::kUnitRows, kAcross = kDim / 16 / kUnit;
    const int lane = threadIdx.x % 32;
    const uint32_t left = LaneOffsets<kScoreStride>::right() + scores_ + turn * kScoreBytes;
    const uint32_t right = LaneOffsets<kStride>::left() + keys_;
    for (int unit = threadIdx.x / 32; unit < S::kUnits; unit += S::kWarps) {
      const int query = unit / kAcross * 16 * kUnitRows, dim = unit % kAcross * 16 * kUnit;
      const int valid = pass_.length - block * kQueries - query;
      if (valid <= 0) break;
      float sums[kUnitRows][2 * kUnit][4] = {};
      float4* const partial = o_.partial + blockIdx.x * o_.partial_stride +
                              (int64_t{block} * S::kUnits + unit) * kUnitRows * 2 * kUnit * 32 +
                              lane;
      if (pass_.first_key > 0)
#pragma unroll
        for (int n = 0; n < kUnitRows * 2 * kUnit; ++n)
          *reinterpret_cast<float4*>(sums[n / (2 * kUnit)][n % (2 * kUnit)]) = partial[n * 32];
#pragma unroll 2
      for (int key = 0; key < pass_.keys; key += 16) {
        Fragment a[kUnitRows];
#pragma unroll
        for (int m = 0; m < kUnitRows; ++m)
          load_matrices_transposed(a[m], left + (key * kScoreStride + query + 16 * m) * 2);
#pragma unroll
        for (int n = 0; n < kUnit; ++n) {
          Fragment b;
          load_matrices_transposed(b, right + (key * kStride + dim + n * 16) * 2);
#pragma unroll
          for (int m = 0; m < kUnitRows; ++m) {
            multiply_add<T>(sums[m][2 * n], a[m], b[0], b[1]);
            multiply_add<T>(sums[m][2 * n + 1], a[m], b[2], b[3]);
          }
        }
      }
      if (!last_pass()) {
#pragma unroll
        for (int n = 0; n < kUnitRows * 2 * kUnit; ++n)
          partial[n * 32] =
              *reinterpret_cast<const float4*>(sums[n / (2 * kUnit)][n % (2 * kUnit)]);
        continue;
      }
      T* const to = o_.dqkv + pass_.in_at + (block * kQueries + query) * stride_ + dim;
#pragma unroll
      for (int m = 0; m < kUnitRows; ++m)
#pragma unroll
        for (int n = 0; n < kUnit; ++n)
          store_pair<T>(to + 16 * m * stride_ + 16 * n, stride_, sums[m][2 * n], sums[m][2 * n + 1],
                        o_.scale, valid - 16 * m, o_.dim - dim - 16 * n);
    }
  }

  // dK and dV of this warp's keys.
  __device__ __forceinline__ void store_keys() const {
    T* const to = o_.dqkv + pass_.in_at + out_stride_ + (pass_.first_key + own_) * stride_;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        T* const tile = to + 16 * t * stride_ + 16 * n;
        const int rows = pass_.keys - own_ - 16 * t, columns = o_.dim - 16 * n;
        store_pair<T>(tile, stride_, dk_[t][2 * n], dk_[t][2 * n + 1], o_.scale, rows, columns);
        store_pair<T>(tile + out_stride_, stride_, dv_[t][2 * n], dv_[t][2 * n + 1], 1, rows,
                      columns);
      }
  }
  // All gradients of a head's padding are zero.
  __device__ __forceinline__ void clear_padding() const {
    const int pieces = o_.dim / 8;
    for (int i = threadIdx.x; i < (o_.tokens - pass_.length) * pieces; i += S::kWarps * 32) {
      T* const to = o_.dqkv + pass_.in_at + (pass_.length + i / pieces) * stride_ + i % pieces * 8;
#pragma unroll
      for (int part = 0; part < 3; ++part)
        *reinterpret_cast<uint4*>(to + part * out_stride_) = uint4{};
    }
  }

  const BackwardOperands<T>& o_;
  unsigned char* const shared_;
  const Copier copier_;
  uint32_t keys_, values_, ring_, outs_, scores_, row_sums_;
  int64_t out_stride_, stride_;
  int own_;       // first of this warp's keys within a pass
  int turn_ = 0;  // half of the ring, and of the scores, that is in use
  Pass pass_;
  float dk_[kTiles][2 * kSteps][4], dv_[kTiles][2 * kSteps][4];
};
#endif

template <class T, class S>
__global__ __launch_bounds__(S::kWarps * 32, 1) void attention_backward_kernel(
    const __grid_constant__ BackwardOperands<T> o) {
#ifdef __CUDA_ARCH__
#if VP_HAS_ASYNC_MMA
  if constexpr (__CUDA_ARCH__ >= 900 || !S::kTooLargeForSm80) {
    extern __shared__ __align__(16) unsigned char shared[];
    BackwardBlock<T, S>(o, shared).run();
  }
#endif
#endif
}

}  // namespace voltapile::cuda
