// Fused attention forward with the warpgroup products of sm_90a. A block stays on its
// multiprocessor and passes over (sample, head, some tiles of 64 queries). One of its warps has
// keys and values copied into a ring of tiles, another the queries; each further warpgroup takes
// every kGroups-th tile of queries, as it comes, with the online softmax of FlashAttention-2 (Dao
// 2023, algorithm 1). So the copies of the next head run beside the products, and those of one
// warpgroup beside the exponentials of another. Traffic: qkv and out once; keys and values come
// again from L2 for every `group` tiles of queries. Bound: DRAM at 256 tokens; 16 exponentials a
// cycle and multiprocessor (head size 64) or tensor cores for longer sequences.
#pragma once
#include "attention_hopper_rows.cuh"

namespace voltapile::cuda {

#if VP_HAS_WGMMA
// A tile of kRows tokens from `token` on of a part of qkv.
template <class S, int kRows>
__device__ __forceinline__ void copy_tile(const CUtensorMap& map, const CUtensorMap& tail,
                                          uint32_t tile, uint32_t barrier, const HopperItem& item,
                                          int part, int token) {
  arrive_expecting(barrier, kRows * S::kDim * 2);
  copy_columns<S, kRows * 128>(map, tile, barrier, item.h, part, token, item.b);
  if constexpr (S::kTail > 0)
    copy_box(tile + S::kColumns * kRows * 128, tail, barrier, 64 * S::kColumns, item.h, part, token,
             item.b);
}

template <class S>
__device__ __forceinline__ void copy_keys_and_values(const HopperOperands& o, uint32_t shared) {
  HopperRing<S> ring{shared};
  for (int index = blockIdx.x; index < o.items; index += gridDim.x) {
    const auto item = HopperItem::of(o, S::kKeys, index);
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
    const auto item = HopperItem::of(o, S::kKeys, index);
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

// Makes rows of values from `valid` on zeros: padding may hold what times zero is not zero.
template <class S>
__device__ __forceinline__ void clear_padding(uint32_t values, int valid, int barrier) {
  constexpr int kPieces = S::kDim / 8;
  for (int i = threadIdx.x % 128 + valid * kPieces; i < S::kKeys * kPieces; i += 128) {
    const int row = i / kPieces, piece = i % kPieces, column = piece / 8;
    const int width = column < S::kColumns ? 128 : S::kTailBytes;
    store_zeros(values + column * S::kKeys * 128 + row * width + piece % 8 * 16);
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
    const auto item = HopperItem::of(o, S::kKeys, index);
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
      if (first >= item.length) {  // only padding
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
      passed = last && first < item.length;
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
  const auto prepare = [&] {
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
  };
  const auto copy = [&](int) {
    if (threadIdx.x == 0) copy_keys_and_values<S>(o, shared);
    else if (threadIdx.x == 32) copy_queries<S>(o, shared);
  };
  const auto compute = [&](int warpgroup) { attend<T, S>(o, shared, warpgroup); };
  run_roles<S>(prepare, copy, compute);
#endif
}

}  // namespace voltapile::cuda
