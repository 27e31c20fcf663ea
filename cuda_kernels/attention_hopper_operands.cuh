// What attention_hopper.cuh works on, and how its shared memory is laid out: a ring of tiles of
// keys and values, each warpgroup's tiles of queries, then two barriers for each.
#pragma once
#include "attention_hopper_common.cuh"

namespace voltapile::cuda {

// The kernel's choices. kGroups: warpgroups that compute. kKeys: of a tile of keys or values, of
// which the ring has kStages. kOverlap: whether a warpgroup sums the values of one tile beside its
// own exponentials of the next, too.
template <int kDim_, int kGroups_, int kKeys_, int kStages_, bool kOverlap_>
struct HopperShape {
  static constexpr int kDim = kDim_, kGroups = kGroups_, kKeys = kKeys_, kStages = kStages_;
  static constexpr bool kOverlap = kOverlap_;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kSlots = 2;  // tiles of queries that a warpgroup has in shared memory
  // A thread's; together no more than a multiprocessor has.
  static_assert(kGroups == 2 || kGroups == 3);
  static constexpr int kRegisters = kGroups == 2 ? 240 : 160;
  static constexpr int kCopierRegisters = kGroups == 2 ? 24 : 32;
  static_assert(128 * (kGroups * kRegisters + kCopierRegisters) <= kMultiprocessorRegisters);

  // A tile's rows lie in columns of 64 numbers, each a swizzled matrix, and a narrower one.
  static constexpr int kColumns = kDim / 64, kTail = kDim % 64, kTailBytes = 2 * kTail;
  static_assert(kDim <= 128 && (kTail == 0 || kTail == 16 || kTail == 32));
  static constexpr int kKeyBytes = kKeys * kDim * 2, kQueryBytes = 64 * kDim * 2;
  static constexpr int kStageBytes = (kKeyBytes + 1023) / 1024 * 1024;
  static constexpr int kQueriesAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kQueriesAt + kGroups * kSlots * kQueryBytes;
  static constexpr int kSharedBytes = kBarriersAt + 16 * (kStages + kGroups * kSlots);
  static_assert(kSharedBytes <= kMostSharedBytes);
};

struct HopperOperands {
  // Of qkv (D,H,3,T,B), in boxes of 64 tokens for queries and of kKeys for keys and values, and of
  // out (D,H,T,B), in boxes of 64; each of 64 numbers of a head, and of kTail.
  CUtensorMap queries, queries_tail, keys, keys_tail, out, out_tail;
  const int* lengths;  // (B), or null
  float* lse;          // (B,H,T)
  int tokens, heads;
  int tiles;  // of 64 queries a head
  int group;  // of them that pass over keys and values together: at most kGroups, unless all keys
              // and values of a head fit into the ring
  int items;  // B * H * groups()
  float scale;

  __host__ __device__ int groups() const { return (tiles + group - 1) / group; }  // of a head
};

#if VP_HAS_WGMMA
// Some of a head's tiles of queries: `count` from number `first` on.
struct HopperItem : HopperHead {
  // Item number `index` of o, whose keys come in tiles of `keys`.
  __device__ __forceinline__ static HopperItem of(const HopperOperands& o, int keys, int index) {
    const int groups = o.groups();
    const int first = index % groups * o.group, count = min(o.group, o.tiles - first);
    const HopperHead head(o, index / groups);
    return {head, first, count, (head.length + keys - 1) / keys};
  }
  int first, count;
  int key_tiles;
};

// Where in the ring of keys and values one is, and the addresses of that place.
template <class S>
struct HopperRing {
  uint32_t shared;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t tile() const { return shared + stage * S::kStageBytes; }
  __device__ __forceinline__ uint32_t full() const { return shared + S::kBarriersAt + stage * 16; }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
  __device__ __forceinline__ void advance(int tiles = 1) {
    stage += tiles;
    parity ^= stage / S::kStages & 1;
    stage %= S::kStages;
  }
};
template <class S>
struct HopperQueries {
  // The place of a warpgroup's tile number `turn`.
  __device__ __forceinline__ HopperQueries(uint32_t shared, int warpgroup, int turn) {
    const int place = warpgroup * S::kSlots + turn % S::kSlots;
    tile = shared + S::kQueriesAt + place * S::kQueryBytes;
    full = shared + S::kBarriersAt + 16 * (S::kStages + place);
    parity = turn / S::kSlots & 1;
  }
  __device__ __forceinline__ uint32_t empty() const { return full + 8; }
  uint32_t tile, full, parity;
};
#endif

}  // namespace voltapile::cuda
