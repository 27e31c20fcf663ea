// What attention_hopper_backward.cuh works on, and how its shared memory is laid out.
#pragma once
#include "attention_hopper_common.cuh"

namespace voltapile::cuda {

// The kernel's choices. kBlocks: of 64 keys a warpgroup has in a pass. Slower on an H200: dQ of a
// tile of queries one tile later, with no meeting of the warpgroups before; and the next head's
// tiles brought to L2 ahead.
template <int kDim_, int kBlocks_>
struct HopperBackwardShape {
  static constexpr int kDim = kDim_, kBlocks = kBlocks_;
  static constexpr int kQueries = 64, kGroups = 2, kKeys = kGroups * kBlocks * 64;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kRegisters = 232, kCopierRegisters = 40;  // of a thread
  static_assert(128 * (kGroups * kRegisters + kCopierRegisters) <= kMultiprocessorRegisters);

  // A tile's rows lie in columns of 64 numbers, each a swizzled matrix of rows of 128 bytes.
  static constexpr int kColumns = kDim / 64;
  static_assert(kDim == 64 * kColumns && kColumns <= kGroups && kKeys <= 256);
  static constexpr int kPartBytes = 64 * 128;  // 64 rows of one column
  static constexpr int kKeyBytes = kKeys * kDim * 2, kTileBytes = kColumns * kPartBytes;
  static constexpr int kScoreBytes = kQueries * kKeys * 2;
  // Values and keys pass by turns through a ring of three tiles, so that the next values, and soon
  // after the next keys, come while this pass goes on.
  static constexpr int kSlots = 3;
  static constexpr int kQueriesAt = kSlots * kKeyBytes;
  static constexpr int kDoutAt = kQueriesAt + 2 * kTileBytes;
  static constexpr int kScoresAt = kDoutAt + 2 * kTileBytes;  // dS (queries x keys)
  static constexpr int kOutAt = kScoresAt + 2 * kScoreBytes;
  static constexpr int kStagingAt = kOutAt + kTileBytes;  // dQ, of each warpgroup
  static constexpr int kRowsAt = kStagingAt + kGroups * kPartBytes;
  static constexpr int kRowsBytes = 2 * kQueries * 4;
  static constexpr int kBarriersAt = kRowsAt + 2 * kRowsBytes;
  static constexpr int kTurnBarriers = 6;  // for each of the two tiles of queries
  static constexpr int kOutBarriersAt = kBarriersAt + 2 * kTurnBarriers * 8;
  static constexpr int kSlotBarriersAt = kOutBarriersAt + 2 * 8;
  static constexpr int kSharedBytes = kSlotBarriersAt + kSlots * 2 * 8;
  static_assert(kSharedBytes <= kMostSharedBytes);

  // float4 of scratch that a thread block needs for a tile of queries: dQ and the row sums.
  static constexpr int kPartialOfTile = (kQueries * kDim + kQueries) / 4;
};

struct HopperBackwardOperands {
  // Of qkv (D,H,3,T,B), in boxes of 64 tokens and of kKeys, of dout and out (D,H,T,B), and of dqkv
  // (D,H,3,T,B), in boxes of 64; each of 64 numbers of a head.
  CUtensorMap queries, keys, dout, out, dqkv;
  uint4* gradients;    // dqkv
  const int* lengths;  // (B), or null
  const float* lse;    // (B,H,T)
  float4* partial;     // room of each thread block for what is kept between passes
  int64_t partial_stride;
  int tokens, heads, dim;
  int all_heads;  // B * H
  int tiles;      // of 64 queries of `tokens`
  float scale;
};

#if VP_HAS_WGMMA
// How a thread block passes over a head, whose keys come in tiles of `keys`.
struct HopperBackwardHead : HopperHead {
  __device__ __forceinline__ HopperBackwardHead(const HopperBackwardOperands& o, int keys,
                                                int index)
      : HopperHead(o, index),
        tiles((length + 63) / 64),
        passes((length + keys - 1) / keys),
        padded(length < o.tokens) {}
  int tiles, passes;  // of queries that are no padding; over keys
  bool padded;
};

// Where one tile of queries is: Q, dO, dS, its rows' lse and sums, and their barriers.
template <class S>
struct HopperTurn {
  uint32_t shared;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t queries() const {
    return shared + S::kQueriesAt + stage * S::kTileBytes;
  }
  __device__ __forceinline__ uint32_t dout() const {
    return shared + S::kDoutAt + stage * S::kTileBytes;
  }
  __device__ __forceinline__ uint32_t scores() const {
    return shared + S::kScoresAt + stage * S::kScoreBytes;
  }
  // lse in powers of two, then rowsum(dO * O), of 64 queries
  __device__ __forceinline__ uint32_t rows() const {
    return shared + S::kRowsAt + stage * S::kRowsBytes;
  }
  __device__ __forceinline__ uint32_t queries_full() const { return barrier(0); }
  __device__ __forceinline__ uint32_t dout_full() const { return barrier(1); }
  // The rows are there, and padding in Q and dO is zero.
  __device__ __forceinline__ uint32_t rows_full() const { return barrier(2); }
  __device__ __forceinline__ uint32_t empty() const { return barrier(3); }  // of Q, dO and rows
  __device__ __forceinline__ uint32_t scores_full() const { return barrier(4); }
  __device__ __forceinline__ uint32_t scores_empty() const { return barrier(5); }
  __device__ __forceinline__ void advance() {
    stage ^= 1;
    parity ^= stage == 0;
  }
  __device__ __forceinline__ HopperTurn previous() const {
    return {shared, stage ^ 1, parity ^ (stage == 0)};
  }

 private:
  __device__ __forceinline__ uint32_t barrier(int which) const {
    return shared + S::kBarriersAt + 16 * which + 8 * stage;
  }
};

// The one tile of O.
template <class S>
struct HopperOut {
  uint32_t shared;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t tile() const { return shared + S::kOutAt; }
  __device__ __forceinline__ uint32_t full() const { return shared + S::kOutBarriersAt; }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
};

// A tile of values or of keys.
template <class S>
struct HopperSlot {
  uint32_t shared;
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t tile() const { return shared + slot * S::kKeyBytes; }
  __device__ __forceinline__ uint32_t full() const {
    return shared + S::kSlotBarriersAt + slot * 16;
  }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
  __device__ __forceinline__ void advance() {
    if (++slot < S::kSlots) return;
    slot = 0;
    parity ^= 1;
  }
};
#endif

}  // namespace voltapile::cuda
