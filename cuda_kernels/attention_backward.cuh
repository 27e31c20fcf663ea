// Fused attention backward on tensor cores, without atomics (Dao 2023, algorithm 2, with dQ made on
// chip). A thread block owns one head. A pass over its keys gives every warp 16 * kTiles keys: it
// holds their dK and dV in registers while blocks of kQueries queries go by, and works on the
// transposed scores, so that P^T and dS^T are left factors straight from registers. dS^T also goes
// through shared memory, where the keys of all warps meet: dQ of a block of queries is one product
// over the pass's keys. What more than one pass adds to dQ waits in the block's own memory in L2.
// Bound: shared-memory reads of the tensor cores' factors; DRAM sees each operand once.
#pragma once
#include "attention_mma.cuh"

namespace voltapile::cuda {

template <class T>
struct BackwardOperands {
  const T* dout;       // (B,T,H,D)
  const T* qkv;        // (B,T,3,H,D)
  const int* lengths;  // (B), or null
  const T* out;        // (B,T,H,D)
  const float* lse;    // (B,H,T)
  T* dqkv;             // (B,T,3,H,D)
  float4* partial;     // room of each thread block for dQ between passes; null for one pass
  int64_t partial_stride;
  int tokens, heads, dim;
  int all_heads;  // B * H
  int pass_keys;  // keys of a pass, a multiple of 16 * kTiles
  int passes;
  // All passes in one thread block, with dQ; or one pass a thread block and dQ by another kernel.
  bool with_queries;
  float scale;
};

template <int kDim_, int kTiles_, int kWarps_, int kQueries_, int kChunk_>
struct BackwardShape {
  static constexpr int kDim = kDim_;
  static constexpr int kTiles = kTiles_;      // of 16 keys a warp
  static constexpr int kWarps = kWarps_;      // at most
  static constexpr int kQueries = kQueries_;  // of a block
  static constexpr int kChunk = kChunk_;      // queries whose scores a warp holds at a time
  static constexpr int kStride = kDim + 8, kScoreStride = kQueries + 8;
  // dQ of a block is made in units of 16 queries x 16 kUnit dims.
  static constexpr int kUnit = kDim % 32 == 0 && kQueries >= 64 ? 2 : 1;
  static constexpr int kUnits = kQueries / 16 * (kDim / 16 / kUnit);
  static constexpr int shared_bytes(int keys) {
    return (2 * keys * kStride + 4 * kQueries * kStride + kQueries * kDim +
            2 * keys * kScoreStride) *
               2 +
           4 * kQueries * 4;
  }
  // float4 of partial dQ that a block of queries takes
  static constexpr int kPartial = kUnits * 2 * kUnit * 32;
};

#if VP_HAS_ASYNC_MMA
template <class T, class S>
class BackwardBlock {
  static constexpr int kDim = S::kDim, kStride = S::kStride, kSteps = kDim / 16;
  static constexpr int kQueries = S::kQueries, kChunk = S::kChunk, kTiles = S::kTiles;
  static constexpr int kRows = 16 * kTiles, kScoreStride = S::kScoreStride;
  static constexpr int kPieces = kDim / 8;
  static constexpr int kLanes = kPieces <= 4 ? 4 : kPieces <= 8 ? 8 : 16;  // of a row's pieces
  static constexpr uint32_t kTileBytes = kQueries * kStride * 2;

 public:
  __device__ __forceinline__ BackwardBlock(const BackwardOperands<T>& o, unsigned char* shared)
      : o_(o), shared_(shared) {
    const int keys = static_cast<int>(blockDim.x) / 32 * kRows;
    keys_ = shared_address(shared);
    values_ = keys_ + keys * kStride * 2;
    ring_ = values_ + keys * kStride * 2;
    outs_ = ring_ + 4 * kTileBytes;
    scores_ = outs_ + kQueries * kDim * 2;
    score_bytes_ = keys * kScoreStride * 2;
    row_sums_ = scores_ + 2 * score_bytes_;
    out_stride_ = int64_t{o.heads} * o.dim;
    stride_ = 3 * out_stride_;
  }

  __device__ __forceinline__ void head(int index) {
    head_ = index;
    const int64_t b = index / o_.heads, h = index % o_.heads;
    length_ = o_.lengths ? o_.lengths[b] : o_.tokens;
    in_at_ = b * o_.tokens * stride_ + h * o_.dim;
    out_at_ = b * o_.tokens * out_stride_ + h * o_.dim;
  }

  __device__ __forceinline__ void pass(int index) {
    first_key_ = index * o_.pass_keys;
    const int warp = threadIdx.x / 32;
    pass_keys_ = min(o_.pass_keys, length_ - first_key_);
    own_ = warp * kRows;  // within the pass
    if (pass_keys_ > 0) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int n = 0; n < 2 * kSteps; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) dk_[t][n][i] = dv_[t][n][i] = 0;
      load_keys();
      load_block(0);
      wait_copies<0>();
      finish_rows(0);
      __syncthreads();
      const int blocks = (length_ + kQueries - 1) / kQueries;
      for (int block = 0; block < blocks; ++block) {
        if (block + 1 < blocks) load_block(block + 1);
        if (block > 0 && o_.with_queries) query_gradient(block - 1, index);
        if (own_ < pass_keys_) {
#pragma unroll 1
          for (int chunk = 0; chunk < kQueries; chunk += kChunk)
            if (block * kQueries + chunk < length_) scores(block, chunk);
        }
        if (block + 1 < blocks) {
          wait_copies<0>();
          finish_rows(block + 1);
        }
        __syncthreads();
      }
      if (o_.with_queries) {
        query_gradient(blocks - 1, index);
        __syncthreads();
      }
    }
    store_keys();
    __syncthreads();
  }

  // Padding's dQ is zero.
  __device__ __forceinline__ void clear_padded_queries() {
    const int pieces = o_.dim / 8;
    for (int i = threadIdx.x; i < (o_.tokens - length_) * pieces; i += blockDim.x)
      *reinterpret_cast<uint4*>(o_.dqkv + in_at_ + (length_ + i / pieces) * stride_ +
                                i % pieces * 8) = uint4{};
  }

 private:
  __device__ __forceinline__ void load_keys() {
    const T* const k = o_.qkv + in_at_ + out_stride_;
    const int rows = static_cast<int>(blockDim.x) / 32 * kRows;
    for (int i = threadIdx.x; i < rows * kPieces; i += blockDim.x) {
      const int row = i / kPieces, piece = i % kPieces;
      const bool wanted = row < pass_keys_ && piece * 8 < o_.dim;
      const T* const from = wanted ? k + (first_key_ + row) * stride_ + piece * 8 : k;
      const uint32_t to = (row * kStride + piece * 8) * 2;
      copy16(keys_ + to, from, wanted);
      copy16(values_ + to, wanted ? from + out_stride_ : k, wanted);
    }
    commit_copies();
  }
  // Q, dO and O of a block, and its lse. finish_rows() by the same thread reads what it copied.
  __device__ __forceinline__ void load_block(int block) {
    const uint32_t q = ring_ + (block & 1) * 2 * kTileBytes, dout = q + kTileBytes;
    const uint32_t lse = row_sums_ + (block & 1) * kQueries * 8;
    const T* const q_from = o_.qkv + in_at_;
    const T* const dout_from = o_.dout + out_at_;
    const T* const out_from = o_.out + out_at_;
    for (int i = threadIdx.x; i < kQueries * kLanes; i += blockDim.x) {
      const int row = i / kLanes, piece = i % kLanes, at = block * kQueries + row;
      if (piece >= kPieces) continue;
      const bool wanted = at < length_ && piece * 8 < o_.dim;
      const int64_t from = wanted ? at * out_stride_ + piece * 8 : 0;
      copy16(q + (row * kStride + piece * 8) * 2, q_from + (wanted ? at * stride_ + piece * 8 : 0),
             wanted);
      copy16(dout + (row * kStride + piece * 8) * 2, dout_from + from, wanted);
      copy16(outs_ + (row * kDim + piece * 8) * 2, out_from + from, wanted);
      if (piece == 0)
        copy4(lse + row * 4, o_.lse + int64_t{head_} * o_.tokens + (wanted ? at : 0), wanted);
    }
    commit_copies();
  }
  // lse in powers of two (infinite for padding, which makes its probabilities zero), and
  // rowsum(dO * O) with its sign turned.
  __device__ __forceinline__ void finish_rows(int block) {
    const unsigned char* const dout_tile =
        shared_ + (ring_ - keys_) + ((block & 1) * 2 + 1) * kTileBytes;
    const unsigned char* const out_tile = shared_ + (outs_ - keys_);
    float* const lse =
        reinterpret_cast<float*>(shared_ + (row_sums_ - keys_)) + (block & 1) * 2 * kQueries;
    for (int i = threadIdx.x; i < kQueries * kLanes; i += blockDim.x) {
      const int row = i / kLanes, piece = i % kLanes;
      float sum = 0;
      if (piece < kPieces) {
        const auto a =
            *reinterpret_cast<const Pack<T, 8>*>(dout_tile + (row * kStride + piece * 8) * 2);
        const auto b =
            *reinterpret_cast<const Pack<T, 8>*>(out_tile + (row * kDim + piece * 8) * 2);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum = fmaf(widen(a.v[j]), widen(b.v[j]), sum);
      }
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      if (piece == 0) {
        lse[row] = block * kQueries + row < length_ ? lse[row] * kLog2E : INFINITY;
        lse[kQueries + row] = -sum;
      }
    }
  }

  // This warp's keys against queries [chunk, chunk + kChunk) of the block.
  __device__ __forceinline__ void scores(int block, int chunk) {
    constexpr int kGroups = kChunk / 16;
    const int lane = threadIdx.x % 32;
    const uint32_t left = LaneOffsets<kStride>::left(), right = LaneOffsets<kStride>::right();
    const uint32_t q = ring_ + (block & 1) * 2 * kTileBytes + chunk * kStride * 2;
    const uint32_t dout = q + kTileBytes;
    const float* const lse = reinterpret_cast<const float*>(shared_ + (row_sums_ - keys_)) +
                             (block & 1) * 2 * kQueries + chunk + lane % 4 * 2;
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
    if (own_ + kRows > pass_keys_) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (own_ + t * 16 + half * 8 + lane / 4 >= pass_keys_)
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
    unsigned char* const store = shared_ + (scores_ - keys_) + (block & 1) * score_bytes_ +
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
  __device__ __forceinline__ void query_gradient(int block, int pass) {
    constexpr int kUnit = S::kUnit, kAcross = kDim / 16 / kUnit;
    const int lane = threadIdx.x % 32;
    const uint32_t left = LaneOffsets<kScoreStride>::right() + scores_ + (block & 1) * score_bytes_;
    const uint32_t right = LaneOffsets<kStride>::left() + keys_;
    for (int unit = threadIdx.x / 32; unit < S::kUnits; unit += blockDim.x / 32) {
      const int query = unit / kAcross * 16, dim = unit % kAcross * 16 * kUnit;
      if (block * kQueries + query >= length_) break;
      float sums[2 * kUnit][4] = {};
      float4* const partial = o_.partial + blockIdx.x * o_.partial_stride +
                              (int64_t{block} * S::kUnits + unit) * 2 * kUnit * 32 + lane;
      if (pass > 0)
#pragma unroll
        for (int n = 0; n < 2 * kUnit; ++n) *reinterpret_cast<float4*>(sums[n]) = partial[n * 32];
#pragma unroll 2
      for (int key = 0; key < pass_keys_; key += 16) {
        Fragment a;
        load_matrices_transposed(a, left + (key * kScoreStride + query) * 2);
#pragma unroll
        for (int n = 0; n < kUnit; ++n) {
          Fragment b;
          load_matrices_transposed(b, right + (key * kStride + dim + n * 16) * 2);
          multiply_add<T>(sums[2 * n], a, b[0], b[1]);
          multiply_add<T>(sums[2 * n + 1], a, b[2], b[3]);
        }
      }
      if (first_key_ + o_.pass_keys < length_) {
#pragma unroll
        for (int n = 0; n < 2 * kUnit; ++n)
          partial[n * 32] = *reinterpret_cast<const float4*>(sums[n]);
        continue;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = block * kQueries + query + half * 8 + lane / 4;
        if (at >= length_) continue;
        T* const to = o_.dqkv + in_at_ + at * stride_ + dim + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 2 * kUnit; ++n)
          if (dim + n * 8 < o_.dim)
            *reinterpret_cast<uint32_t*>(to + n * 8) =
                pack_pair<T>(sums[n][2 * half] * o_.scale, sums[n][2 * half + 1] * o_.scale);
      }
    }
  }

  // dK and dV of this warp's keys, by way of its own rows of the tiles; padding's are zeros.
  __device__ __forceinline__ void store_keys() {
    const int lane = threadIdx.x % 32, pieces = o_.dim / 8;
    if (pass_keys_ > 0) {
      stage(dk_, keys_, o_.scale);
      stage(dv_, values_, 1);
      __syncwarp();
    }
    T* const to = o_.dqkv + in_at_ + out_stride_;
    for (int i = lane; i < kRows * kPieces; i += 32) {
      const int row = i / kPieces, piece = i % kPieces, at = first_key_ + own_ + row;
      if (at >= o_.tokens || own_ + row >= o_.pass_keys || piece >= pieces) continue;
      uint4 dk{}, dv{};
      if (at < length_) {
        const int from = ((own_ + row) * kStride + piece * 8) * 2;
        dk = *reinterpret_cast<const uint4*>(shared_ + from);
        dv = *reinterpret_cast<const uint4*>(shared_ + (values_ - keys_) + from);
      }
      *reinterpret_cast<uint4*>(to + at * stride_ + piece * 8) = dk;
      *reinterpret_cast<uint4*>(to + out_stride_ + at * stride_ + piece * 8) = dv;
    }
  }
  __device__ __forceinline__ void stage(const float (&sums)[kTiles][2 * kSteps][4], uint32_t tile,
                                        float factor) {
    const int lane = threadIdx.x % 32;
    unsigned char* const to =
        shared_ + (tile - keys_) + ((own_ + lane / 4) * kStride + lane % 4 * 2) * 2;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<uint32_t*>(to + ((t * 16 + half * 8) * kStride + n * 8) * 2) =
              pack_pair<T>(sums[t][n][2 * half] * factor, sums[t][n][2 * half + 1] * factor);
  }

  const BackwardOperands<T>& o_;
  unsigned char* const shared_;
  uint32_t keys_, values_, ring_, outs_, scores_, score_bytes_, row_sums_;
  int64_t out_stride_, stride_, in_at_, out_at_;
  int head_, length_, first_key_, pass_keys_, own_;
  float dk_[kTiles][2 * kSteps][4], dv_[kTiles][2 * kSteps][4];
};
#endif

template <class T, class S>
__global__ __launch_bounds__(S::kWarps * 32, 1) void attention_backward_kernel(
    const __grid_constant__ BackwardOperands<T> o) {
#if VP_HAS_ASYNC_MMA
  extern __shared__ __align__(16) unsigned char shared[];
  BackwardBlock<T, S> block(o, shared);
  if (o.with_queries) {
    for (int head = blockIdx.x; head < o.all_heads; head += gridDim.x) {
      block.head(head);
      for (int pass = 0; pass < o.passes; ++pass) block.pass(pass);
      block.clear_padded_queries();
    }
  } else {
    block.head(blockIdx.x / o.passes);
    block.pass(blockIdx.x % o.passes);
  }
#endif
}

}  // namespace voltapile::cuda
