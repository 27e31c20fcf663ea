// Fused attention forward with the warpgroup products of sm_90a. A block stays on its multiprocessor
// and passes over (sample, head, some tiles of 64 queries). One of its warps has keys and values
// copied into a ring of tiles, another the queries; each further warpgroup takes every kGroups-th
// tile of queries, as it comes, with the online softmax of FlashAttention-2 (Dao 2023, algorithm 1).
// So the copies of the next head run beside the products, and those of one warpgroup beside the
// exponentials of another. Traffic: qkv and out once; keys and values come again from L2 for every
// `group` tiles of queries. Bound: DRAM at 256 tokens; 16 exponentials a cycle and multiprocessor
// (head size 64) or tensor cores for longer sequences.
#pragma once
#include "hopper.cuh"

namespace voltapile::cuda {

// The kernel's choices. kSlots: tiles of queries a warpgroup may have in shared memory. kOverlap:
// whether a warpgroup computes the next scores beside its own exponentials, too.
template <int kDim_, int kGroups_, int kKeys_, int kStages_, int kSlots_, bool kOverlap_>
struct HopperShape {
  static constexpr int kDim = kDim_, kGroups = kGroups_, kKeys = kKeys_, kStages = kStages_;
  static constexpr int kSlots = kSlots_;
  static constexpr bool kOverlap = kOverlap_;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kRegisters = kGroups == 2 ? 240 : kGroups == 3 ? 160 : 112;
  static constexpr int kCopierRegisters = kGroups == 3 ? 32 : 24;

  // A tile's rows lie in columns of 64 numbers, each a swizzled matrix, and a narrower one.
  static constexpr int kColumns = kDim / 64, kTail = kDim % 64, kTailBytes = 2 * kTail;
  static_assert(kDim <= 128 && (kTail == 0 || kTail == 16 || kTail == 32));
  static constexpr int kKeyBytes = kKeys * kDim * 2, kQueryBytes = 64 * kDim * 2;
  static constexpr int kStageBytes = (kKeyBytes + 1023) / 1024 * 1024;
  static constexpr int kQueriesAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kQueriesAt + kGroups * kSlots * kQueryBytes;
  static constexpr int kSharedBytes = kBarriersAt + 16 * (kStages + kGroups * kSlots);
  static_assert(kSharedBytes <= 227 * 1024);
};

struct HopperOperands {
  // Of qkv (D,H,3,T,B), in boxes of 64 tokens for queries and of kKeys for keys and values, and of
  // out (D,H,T,B), in boxes of 64; each of 64 numbers of a head, and of kTail.
  CUtensorMap queries, queries_tail, keys, keys_tail, out, out_tail;
  const int* lengths;         // (B), or null
  float* lse;                 // (B,H,T)
  int tokens, heads;
  int tiles;  // of 64 queries a head
  int group;  // of them that pass over keys and values together: at most kGroups, unless all keys
              // and values of a head fit into the ring
  int items;  // B * H * ceil(tiles / group)
  float scale;
};

#if VP_HAS_WGMMA
struct HopperItem {
  // Item number `index` of o.
  __device__ __forceinline__ HopperItem(const HopperOperands& o, int keys, int index) {
    const int groups = (o.tiles + o.group - 1) / o.group;
    const int head = index / groups;
    first = index % groups * o.group;
    count = min(o.group, o.tiles - first);
    b = head / o.heads;
    h = head % o.heads;
    length = o.lengths ? o.lengths[b] : o.tokens;
    key_tiles = (length + keys - 1) / keys;
  }
  int b, h, first, count;  // `count` tiles of queries from number `first` on
  int length, key_tiles;
};

// Addresses of the barriers, and where in the ring of keys and values one is.
template <class S>
struct HopperRing {
  uint32_t shared;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t tile() const { return shared + stage * S::kStageBytes; }
  __device__ __forceinline__ uint32_t full() const {
    return shared + S::kBarriersAt + stage * 16;
  }
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

// A tile of kRows tokens from `token` on of a part of qkv.
template <class S, int kRows>
__device__ __forceinline__ void copy_tile(const CUtensorMap& map, const CUtensorMap& tail,
                                          uint32_t tile, uint32_t barrier, const HopperItem& item,
                                          int part, int token) {
  arrive_expecting(barrier, kRows * S::kDim * 2);
#pragma unroll
  for (int c = 0; c < S::kColumns; ++c)
    copy_box(tile + c * kRows * 128, map, barrier, 64 * c, item.h, part, token,
             item.b);
  if constexpr (S::kTail > 0)
    copy_box(tile + S::kColumns * kRows * 128, tail, barrier, 64 * S::kColumns, item.h, part,
             token, item.b);
}

template <class S>
__device__ __forceinline__ void copy_keys_and_values(const HopperOperands& o, uint32_t shared) {
  HopperRing<S> ring{shared};
  for (int index = blockIdx.x; index < o.items; index += gridDim.x) {
    const HopperItem item(o, S::kKeys, index);
    for (int i = 0; i < item.key_tiles; ++i)
#pragma unroll
      for (int part = 1; part < 3; ++part) {
        wait(ring.empty(), ring.parity ^ 1);
        copy_tile<S, S::kKeys>(o.keys, o.keys_tail, ring.tile(), ring.full(), item, part,
                               i * S::kKeys);
        ring.advance();
      }
  }
}
template <class S>
__device__ __forceinline__ void copy_queries(const HopperOperands& o, uint32_t shared) {
  int warpgroup = 0, turn = 0;
  for (int index = blockIdx.x; index < o.items; index += gridDim.x) {
    const HopperItem item(o, S::kKeys, index);
    for (int i = 0; i < item.count; ++i) {
      const HopperQueries<S> queries(shared, warpgroup, turn);
      wait(queries.empty(), queries.parity ^ 1);
      copy_tile<S, 64>(o.queries, o.queries_tail, queries.tile, queries.full, item, 0,
                       (item.first + i) * 64);
      if (++warpgroup == S::kGroups) {
        warpgroup = 0;
        ++turn;
      }
    }
  }
}

// One tile of queries in the registers of a warpgroup: a lane has parts of rows `row` and `row + 8`
// of its warp's 16.
template <class T, class S>
class HopperRows {
 public:
  // Of one tile of keys. They are passed in, and new for every tile, so that registers are free in
  // between.
  using Scores = float[S::kKeys / 2];
  using Probabilities = uint32_t[S::kKeys / 4];

  __device__ __forceinline__ HopperRows(float scale) : scale_(scale * kLog2E) {}

  // Scores of a tile of keys; committed, not awaited.
  __device__ __forceinline__ void begin_scores(Scores& s, uint32_t queries, uint32_t keys) {
    using Product = WarpgroupProduct<T, S::kKeys>;
    pin(s);
    begin_products();
    const uint64_t q = matrix_at<128>(queries), k = matrix_at<128>(keys);
#pragma unroll
    for (int i = 0; i < 4 * S::kColumns; ++i)
      Product::multiply_rows(s, moved(q, i / 4 * 64 * 128 + i % 4 * 32),
                             moved(k, i / 4 * S::kKeys * 128 + i % 4 * 32), i > 0);
    if constexpr (S::kTail > 0) {
      const uint64_t tail_q = matrix_at<S::kTailBytes>(queries + S::kColumns * 64 * 128);
      const uint64_t tail_k = matrix_at<S::kTailBytes>(keys + S::kColumns * S::kKeys * 128);
#pragma unroll
      for (int i = 0; i < S::kTail / 16; ++i)
        Product::multiply_rows(s, moved(tail_q, i * 32), moved(tail_k, i * 32), 1);
    }
    commit_products();
  }
  // Sums += probabilities * values; committed, not awaited.
  __device__ __forceinline__ void begin_sums(Probabilities& p, uint32_t values) {
    pin(p);
    pin(sums_);
    begin_products();
    const uint64_t v = matrix_at<128>(values, S::kKeys * 128);
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i)
      WarpgroupProduct<T, 64 * S::kColumns>::multiply_columns(sums_, p + 4 * i,
                                                              moved(v, i * 16 * 128), 1);
    if constexpr (S::kTail > 0) {
      const uint64_t tail = matrix_at<S::kTailBytes>(values + S::kColumns * S::kKeys * 128);
#pragma unroll
      for (int i = 0; i < S::kKeys / 16; ++i)
        WarpgroupProduct<T, S::kTail>::multiply_columns(sums_ + 32 * S::kColumns, p + 4 * i,
                                                        moved(tail, i * 16 * S::kTailBytes), 1);
    }
    commit_products();
  }
  template <int kPending>
  __device__ __forceinline__ void scores_done(Scores& s) {
    wait_products<kPending>();
    pin(s);
  }
  __device__ __forceinline__ void sums_done(Probabilities& p) {
    wait_products<0>();
    pin(sums_);
    pin(p);
  }

  // Scores to probabilities, not yet divided by their sum; of keys from `valid` on, to zero.
  __device__ __forceinline__ void soften(Scores& all, int valid) {
    if (valid < S::kKeys) {
      const int column = threadIdx.x % 4 * 2;
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (n * 8 + column + i >= valid) all[4 * n + i] = all[4 * n + 2 + i] = -INFINITY;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const s = all + 2 * half;
      float m = fmaxf(s[0], s[1]), m_odd = fmaxf(s[4], s[5]);
#pragma unroll
      for (int n = 2; n < S::kKeys / 8; n += 2) {
        m = fmaxf(m, fmaxf(s[4 * n], s[4 * n + 1]));
        m_odd = fmaxf(m_odd, fmaxf(s[4 * n + 4], s[4 * n + 5]));
      }
      m = fmaxf(m, m_odd);
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
      m = fmaxf(m, most_[half]);
      shrink_[half] = exp2_fast((most_[half] - m) * scale_);
      most_[half] = m;
      const float shift = m * scale_;
      float total = 0, total_odd = 0;
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
        s[4 * n] = exp2_fast(fmaf(s[4 * n], scale_, -shift));
        s[4 * n + 1] = exp2_fast(fmaf(s[4 * n + 1], scale_, -shift));
        total += s[4 * n];
        total_odd += s[4 * n + 1];
      }
      total_[half] = total_[half] * shrink_[half] + (total + total_odd);
    }
  }
  // Brings the sums to the newest maximum, and rounds the newest probabilities.
  __device__ __forceinline__ void shrink_sums() {
#pragma unroll
    for (int i = 0; i < S::kDim / 2; ++i) sums_[i] *= shrink_[i / 2 % 2];
  }
  __device__ __forceinline__ void round(const Scores& s, Probabilities& p) {
#pragma unroll
    for (int i = 0; i < S::kKeys / 4; ++i) p[i] = pack_pair<T>(s[2 * i], s[2 * i + 1]);
  }

  // Divides the sums, writes them to `tile`, in the layout of queries, and their lse. `present`: rows
  // of the 64 that have a token; `valid`: that are no padding.
  __device__ __forceinline__ void finish(uint32_t tile, float* lse, int valid, int present,
                                         float scale) {
    const int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = total_[half];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const int row = first + half * 8 + lane / 4;
      const float inverse = 1 / total;
      if (lane % 4 == 0 && row < present)
        lse[row] = row < valid ? most_[half] * scale + logf(total) : 0.0f;
#pragma unroll
      for (int n = 0; n < S::kDim / 8; ++n)
#pragma unroll
        for (int i = 4 * n + 2 * half; i < 4 * n + 2 * half + 2; ++i)
          sums_[i] = row < valid ? sums_[i] * inverse : 0.0f;
    }
    const int row = first + lane % 16;
#pragma unroll
    for (int g = 0; g < S::kDim / 16; ++g) {
      const int piece = 2 * g % 8 + lane / 16;
      uint32_t at = tile + g / 4 * 64 * 128;
      if (S::kTail == 0 || g < 4 * S::kColumns) at += row * 128 + (piece ^ row % 8) * 16;
      else if (S::kTail == 32) at += row * 64 + (piece ^ row / 2 % 4) * 16;
      else at += row * 32 + (piece ^ row / 4 % 2) * 16;
      Fragment r;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        r[i] = pack_pair<T>(sums_[8 * g + 2 * i], sums_[8 * g + 2 * i + 1]);
      store_matrices(at, r);
    }
  }

 private:
  float scale_;
  float sums_[S::kDim / 2] = {};
  float most_[2] = {-INFINITY, -INFINITY}, total_[2] = {}, shrink_[2];
};

// Makes rows of values from `valid` on zeros: padding may hold what times zero is not zero.
template <class S>
__device__ __forceinline__ void clear_padding(uint32_t values, int valid, int barrier) {
  constexpr int kPieces = S::kDim / 8;
  for (int i = threadIdx.x % 128 + valid * kPieces; i < S::kKeys * kPieces; i += 128) {
    const int row = i / kPieces, piece = i % kPieces, column = piece / 8;
    const int width = column < S::kColumns ? 128 : S::kTailBytes;
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                     values + column * S::kKeys * 128 + row * width + piece % 8 * 16),
                 "r"(0)
                 : "memory");
  }
  publish_shared();
  warpgroup_sync(barrier);
}

// All tiles of queries of one warpgroup.
template <class T, class S>
__device__ __forceinline__ void attend(const HopperOperands& o, uint32_t shared, int warpgroup) {
  using Rows = HopperRows<T, S>;
  const int barrier = 1 + warpgroup;
  const bool leader = threadIdx.x % 128 == 0, warp_leader = threadIdx.x % 32 == 0;
  HopperRing<S> ring{shared};
  int next = warpgroup;  // tile, counted from the item's first
  int turn = 0;
  uint32_t stored = 0;  // barrier of the queries whose place a store still reads
  const auto give_back = [&] {
    if (!leader || stored == 0) return;
    wait_stores_read();
    arrive(stored);
    stored = 0;
  };
  for (int index = blockIdx.x; index < o.items; index += gridDim.x) {
    const HopperItem item(o, S::kKeys, index);
    bool passed = false;  // whether this warpgroup has let the item's keys and values go
    for (; next < item.count; next += S::kGroups) {
      const bool last = next + S::kGroups >= item.count;
      const auto let_go = [&](const HopperRing<S>& r) {
        if (last && warp_leader) arrive(r.empty());
      };
      const HopperQueries<S> queries(shared, warpgroup, turn++);
      const int first = (item.first + next) * 64;
      Rows rows(o.scale);
      HopperRing<S> keys = ring;
      const auto wait_values = [&](const HopperRing<S>& values, int valid) {
        wait(values.full(), values.parity);
        if (valid < S::kKeys && item.length < o.tokens)
          clear_padding<S>(values.tile(), valid, barrier);
      };
      wait(queries.full, queries.parity);
      if (first < item.length) passed = last;
      if (first >= item.length) {
        give_back();
      } else if constexpr (S::kOverlap) {
        typename Rows::Probabilities p;
        int valid = item.length;
        {
          typename Rows::Scores s;
          wait(keys.full(), keys.parity);
          rows.begin_scores(s, queries.tile, keys.tile());
          rows.template scores_done<0>(s);
          let_go(keys);
          rows.soften(s, valid);
          rows.round(s, p);
        }
        give_back();
        HopperRing<S> values = keys;
        values.advance();
        for (int i = 1; i < item.key_tiles; ++i) {
          typename Rows::Scores s;
          keys.advance(2);
          wait(keys.full(), keys.parity);
          rows.begin_scores(s, queries.tile, keys.tile());
          wait_values(values, valid);
          rows.begin_sums(p, values.tile());
          rows.template scores_done<1>(s);
          let_go(keys);
          valid -= S::kKeys;
          rows.soften(s, valid);
          rows.sums_done(p);
          let_go(values);
          rows.shrink_sums();
          rows.round(s, p);
          values.advance(2);
        }
        wait_values(values, valid);
        rows.begin_sums(p, values.tile());
        rows.sums_done(p);
        let_go(values);
      } else {
        for (int valid = item.length; valid > 0; valid -= S::kKeys) {
          typename Rows::Scores s;
          wait(keys.full(), keys.parity);
          rows.begin_scores(s, queries.tile, keys.tile());
          rows.template scores_done<0>(s);
          let_go(keys);
          keys.advance();
          rows.soften(s, valid);
          if (valid < item.length) rows.shrink_sums();
          else give_back();
          typename Rows::Probabilities p;
          rows.round(s, p);
          wait_values(keys, valid);
          rows.begin_sums(p, keys.tile());
          rows.sums_done(p);
          let_go(keys);
          keys.advance();
        }
      }
      // All warps have read the queries; their place now takes the results.
      warpgroup_sync(barrier);
      rows.finish(queries.tile,
                  o.lse + (static_cast<int64_t>(item.b) * o.heads + item.h) * o.tokens + first,
                  item.length - first, o.tokens - first, o.scale);
      publish_shared();
      warpgroup_sync(barrier);
      if (leader) {
#pragma unroll
        for (int c = 0; c < S::kColumns; ++c)
          store_box(o.out, queries.tile + c * 64 * 128, 64 * c, item.h, first, item.b);
        if constexpr (S::kTail > 0)
          store_box(o.out_tail, queries.tile + S::kColumns * 64 * 128, 64 * S::kColumns, item.h,
                    first, item.b);
        commit_stores();
        stored = queries.empty();
      }
      if constexpr (S::kSlots == 1) give_back();
    }
    next -= item.count;
    // A warpgroup takes part in every phase of every barrier, or it could take one for the next.
    for (int i = 0; i < 2 * item.key_tiles; ++i, ring.advance()) {
      if (passed) continue;
      wait(ring.full(), ring.parity);
      if (warp_leader) arrive(ring.empty());
    }
  }
  give_back();
}
#endif

// gridDim.x: as many blocks as stay on the GPU at once, at most o.items.
template <class T, class S>
__global__ __launch_bounds__(S::kThreads, 1) void attention_hopper_kernel(
    const __grid_constant__ HopperOperands o) {
#if VP_HAS_WGMMA
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = shared_address(memory);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    prefetch_map(o.queries);
    prefetch_map(o.keys);
    prefetch_map(o.out);
    for (int i = 0; i < S::kStages; ++i) {
      const HopperRing<S> ring{shared, i};
      barrier_init(ring.full(), 1);
      barrier_init(ring.empty(), 4 * S::kGroups);  // one arrival a warp
    }
    for (int i = 0; i < S::kGroups * S::kSlots; ++i) {
      const HopperQueries<S> queries(shared, i / S::kSlots, i % S::kSlots);
      barrier_init(queries.full, 1);
      barrier_init(queries.empty(), 1);
    }
    barriers_ready();
  }
  __syncthreads();
  if (warp < 4) {
    leave_registers<S::kCopierRegisters>();
    if (threadIdx.x == 0) copy_keys_and_values<S>(o, shared);
    else if (threadIdx.x == 32) copy_queries<S>(o, shared);
  } else {
    take_registers<S::kRegisters>();
    attend<T, S>(o, shared, warp / 4 - 1);
  }
#endif
}

}  // namespace voltapile::cuda
