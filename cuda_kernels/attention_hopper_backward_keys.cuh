// What a warpgroup computes in attention_hopper_backward.cuh.
#pragma once
#include "attention_hopper_backward_operands.cuh"

namespace voltapile::cuda {

#if VP_HAS_WGMMA
// Blocks of 64 keys of a pass, whose dK and dV stay in registers, and every query of the head in
// turn. dQ: of every tile one column of 64 dims, or of every other tile the only one. A lane has
// parts of keys `row` and `row + 8` of its warp's 16 of a block.
template <class T, class S>
class HopperBackwardKeys {
  using Scores = float[S::kQueries / 2];     // 64 x 64 numbers of f32 of a warpgroup
  using Factor = uint32_t[S::kQueries / 4];  // the same in T
  using Sums = float[S::kDim / 2];           // 64 x dims
  using Turn = HopperTurn<S>;
  static constexpr int kColumnBytes = S::kKeys * 128;  // of keys and values

 public:
  __device__ __forceinline__ HopperBackwardKeys(const HopperBackwardOperands& o, uint32_t shared,
                                                int warpgroup)
      : o_(o), shared_(shared), warpgroup_(warpgroup), turn_{shared}, ring_{shared} {}

  __device__ __forceinline__ void run() {
    for (int index = blockIdx.x; index < o_.all_heads; index += gridDim.x) {
      const HopperBackwardHead head(o_, S::kKeys, index);
      for (int pass = 0; pass < head.passes; ++pass) run_pass(head, pass);
    }
    if (leader()) wait_stores_read();
  }

 private:
  __device__ __forceinline__ void run_pass(const HopperBackwardHead& head, int pass) {
    const HopperSlot<S> values = ring_;
    ring_.advance();
    const HopperSlot<S> keys = ring_;
    ring_.advance();
    const int first = pass * S::kKeys + warpgroup_ * S::kBlocks * 64;
    const int valid = head.length - first;  // of this warpgroup's keys, that are no padding
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < S::kDim / 2; ++i) dk_[b][i] = dv_[b][i] = 0;
    wait(keys.full(), keys.parity);
    if (valid < S::kBlocks * 64 && head.padded) clear_keys(keys.tile(), max(valid, 0));
    wait(values.full(), values.parity);

    Turn turn = turn_;
    for (int i = 0; i < head.tiles; ++i) {
      turn = turn_;
      turn_.advance();
      Scores s, dp;
      Scores& dq = dp;
      Factor p, ds;
      const bool makes_queries = owns(i);
#pragma unroll
      for (int b = 0; b < S::kBlocks; ++b) {
        constexpr int kLast = S::kBlocks - 1;
        begin_scores(s, keys.tile() + part_of(b), turn, head, i);
        commit_products();
        wait(turn.dout_full(), turn.parity);
        begin_product(dp, values.tile() + part_of(b), turn.dout());
        commit_products();
        wait(turn.rows_full(), turn.parity);
        wait_products<1>();
        pin(s);
        soften(s, turn.rows());
        pin(s);
        wait_products<0>();
        pin(dp);
        if (b == kLast && i + 1 == head.tiles && warp_leader()) arrive(values.empty());
        differentiate(s, dp, turn.rows() + S::kQueries * 4, p, ds);
        if (valid < 64 * (b + 1)) mask(p, ds, valid - 64 * b);
        if (b == kLast && makes_queries) begin_queries(dq, i, pass);
        accumulate(dv_[b], p, turn.dout());
        if (b == 0) {
          if (i == 0) release_stores();
          wait(turn.scores_empty(), turn.parity ^ 1);
        }
        store_scores(ds, turn.scores() + part_of(b));
        if (b == kLast) {
          publish_shared();
          __syncwarp();
          if (warp_leader()) arrive(turn.scores_full());
        }
        accumulate(dk_[b], ds, turn.queries());
        commit_products();
        if (b == kLast && makes_queries) {
          multiply_queries(dq, turn, keys.tile());
          commit_products();
          wait_products<1>();
        } else {
          wait_products<0>();
        }
        pin(p);
        pin(ds);
        pin(dv_[b]);
        pin(dk_[b]);
      }
      if (warp_leader()) arrive(turn.empty());
      if (!makes_queries) continue;
      wait_products<0>();
      end_queries(dq, turn, head, i, pass);
    }
    // Neither warpgroup reads dS and keys any more: dV and dK take their places.
    wait(turn.scores_empty(), turn.parity);
    if constexpr (S::kColumns < S::kGroups)
      wait(turn.previous().scores_empty(), turn.previous().parity);
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) {
        stage(dv_[b] + 32 * c, 1, staged_values(b, c));
        stage(dk_[b] + 32 * c, o_.scale, keys.tile() + part_of(b) + c * kColumnBytes);
      }
    publish_shared();
    sync();
    if (leader()) {
#pragma unroll
      for (int b = 0; b < S::kBlocks; ++b)
        if (first + 64 * b < o_.tokens)
#pragma unroll
          for (int c = 0; c < S::kColumns; ++c) {
            store_box(o_.dqkv, staged_values(b, c), 64 * c, head.h, 2, first + 64 * b, head.b);
            store_box(o_.dqkv, keys.tile() + part_of(b) + c * kColumnBytes, 64 * c, head.h, 1,
                      first + 64 * b, head.b);
          }
      commit_stores();
    }
    stored_ = keys.empty();
  }

  __device__ __forceinline__ bool leader() const { return threadIdx.x % 128 == 0; }
  __device__ __forceinline__ bool warp_leader() const { return threadIdx.x % 32 == 0; }
  __device__ __forceinline__ void sync() const { warpgroup_sync(1 + warpgroup_); }
  // Where a block of this warpgroup's keys lies within a column of keys, or of values, and within
  // dS.
  __device__ __forceinline__ int part_of(int block) const {
    return (warpgroup_ * S::kBlocks + block) * S::kPartBytes;
  }
  // Column c of dV of a block: the block's own part of one of the two tiles of dS.
  __device__ __forceinline__ uint32_t staged_values(int block, int c) const {
    return shared_ + S::kScoresAt + c * S::kScoreBytes + part_of(block);
  }
  __device__ __forceinline__ int query_column() const {
    return S::kColumns == S::kGroups ? warpgroup_ : 0;
  }
  __device__ __forceinline__ bool owns(int tile) const {
    return S::kColumns == S::kGroups || tile % S::kGroups == warpgroup_;
  }

  // Padding may hold what times zero is not zero. Of this warpgroup's keys, those from `valid` on.
  __device__ __forceinline__ void clear_keys(uint32_t tile, int valid) const {
    constexpr int kPieces = S::kDim / 8;
    for (int i = threadIdx.x % 128 + valid * kPieces; i < S::kBlocks * 64 * kPieces; i += 128)
      store_zeros(tile + part_of(0) + i % kPieces / 8 * kColumnBytes + i / kPieces * 128 +
                  i % 8 * 16);
    publish_shared();
    sync();
  }
  // After a pass: its keys' place is free once dK has left it, and that of dS.
  __device__ __forceinline__ void release_stores() {
    if (stored_ == 0) return;
    if (leader()) wait_stores_read();
    sync();
    if (warp_leader()) arrive(stored_);
    stored_ = 0;
  }

  // result (64 keys x 64 queries) = own (64 x dims, within kKeys) of (64 x dims)^T; not committed.
  __device__ __forceinline__ void begin_product(Scores& result, uint32_t own, uint32_t of) const {
    pin(result);
    begin_products();
    const uint64_t a = matrix_at<128>(own), b = matrix_at<128>(of);
#pragma unroll
    for (int i = 0; i < 4 * S::kColumns; ++i)
      WarpgroupProduct<T, 64>::multiply_rows(result, moved(a, i / 4 * kColumnBytes + i % 4 * 32),
                                             moved(b, i / 4 * S::kPartBytes + i % 4 * 32), i > 0);
  }
  __device__ __forceinline__ void begin_scores(Scores& s, uint32_t own_keys, const Turn& turn,
                                               const HopperBackwardHead& head, int tile) const {
    wait(turn.queries_full(), turn.parity);
    if (head.padded && tile * 64 + 64 > head.length) wait(turn.rows_full(), turn.parity);
    begin_product(s, own_keys, turn.queries());
  }
  // sums (64 keys x dims) += factor (64 keys x 64 queries) of (64 queries x dims); not committed.
  __device__ __forceinline__ void accumulate(Sums& sums, Factor& factor, uint32_t of) const {
    pin(factor);
    pin(sums);
    begin_products();
    const uint64_t b = matrix_at<128>(of, S::kPartBytes);
#pragma unroll
    for (int i = 0; i < S::kQueries / 16; ++i)
      WarpgroupProduct<T, S::kDim>::multiply_columns(sums, factor + 4 * i, moved(b, i * 16 * 128),
                                                     1);
  }

  // Scores to probabilities. rows: lse in powers of two, infinite for padding.
  __device__ __forceinline__ void soften(Scores& s, uint32_t rows) const {
    const float scale = o_.scale * kLog2E;
#pragma unroll
    for (int n = 0; n < S::kQueries / 8; ++n) {
      const float2 shift = load_pair(rows, n);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[4 * n + i] = exp2_fast(fmaf(s[4 * n + i], scale, i % 2 ? -shift.y : -shift.x));
    }
  }
  // dS = P (dP - sums)
  __device__ __forceinline__ void differentiate(const Scores& s, const Scores& dp, uint32_t sums,
                                                Factor& p, Factor& ds) const {
#pragma unroll
    for (int n = 0; n < S::kQueries / 8; ++n) {
      const float2 sum = load_pair(sums, n);
#pragma unroll
      for (int i = 4 * n; i < 4 * n + 4; i += 2) {
        p[i / 2] = pack_pair<T>(s[i], s[i + 1]);
        ds[i / 2] = pack_pair<T>(s[i] * (dp[i] - sum.x), s[i + 1] * (dp[i + 1] - sum.y));
      }
    }
  }
  // Of keys from `valid` on, zeros.
  __device__ __forceinline__ void mask(Factor& p, Factor& ds, int valid) const {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (row + 8 * half >= valid)
#pragma unroll
        for (int i = half; i < S::kQueries / 4; i += 2) p[i] = ds[i] = 0;
  }
  // Of the 8 columns number n this lane has two.
  __device__ __forceinline__ static float2 load_pair(uint32_t rows, int n) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair.x), "=f"(pair.y)
                 : "r"(rows + n * 32 + threadIdx.x % 4 * 8)
                 : "memory");
    return pair;
  }
  // dS^T as dS (64 queries x 64 keys).
  __device__ __forceinline__ static void store_scores(const Factor& ds, uint32_t part) {
    const int lane = threadIdx.x % 32;
    const int piece = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2;
    const uint32_t at = part + (lane / 16 * 8 + lane % 8) * 128 + (piece ^ lane % 8) * 16;
#pragma unroll
    for (int g = 0; g < S::kQueries / 16; ++g)
      store_matrices_transposed(at + g * 16 * 128, ds + 4 * g);
  }

  // This lane's place in scratch for dQ of a tile.
  __device__ __forceinline__ float4* partial(int tile) const {
    return o_.partial + blockIdx.x * o_.partial_stride +
           (tile * S::kColumns + query_column()) * (S::kQueries * 64 / 4) + threadIdx.x % 128;
  }
  // dQ (64 queries x 64 dims) of the passes before.
  __device__ __forceinline__ void begin_queries(Scores& dq, int tile, int pass) const {
    if (pass == 0) {
#pragma unroll
      for (int i = 0; i < S::kQueries / 2; ++i) dq[i] = 0;
      return;
    }
    const float4* const from = partial(tile);
#pragma unroll
    for (int n = 0; n < S::kQueries / 8; ++n) {
      const float4 four = __ldcg(from + n * 128);
      dq[4 * n] = four.x;
      dq[4 * n + 1] = four.y;
      dq[4 * n + 2] = four.z;
      dq[4 * n + 3] = four.w;
    }
  }
  // += dS (64 queries x keys) of both warpgroups by keys (keys x dims); not committed.
  __device__ __forceinline__ void multiply_queries(Scores& dq, const Turn& turn,
                                                   uint32_t keys) const {
    wait(turn.scores_full(), turn.parity);
    pin(dq);
    begin_products();
    const uint64_t a = matrix_at<128>(turn.scores());
    const uint64_t b = matrix_at<128>(keys + query_column() * kColumnBytes, kColumnBytes);
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i)
      WarpgroupProduct<T, 64>::multiply_columns(dq, moved(a, i / 4 * S::kPartBytes + i % 4 * 32),
                                                moved(b, i * 16 * 128), 1);
  }
  __device__ __forceinline__ void end_queries(Scores& dq, const Turn& turn,
                                              const HopperBackwardHead& head, int tile,
                                              int pass) const {
    pin(dq);
    if (warp_leader()) arrive(turn.scores_empty());
    if (pass + 1 < head.passes) {
      float4* const to = partial(tile);
#pragma unroll
      for (int n = 0; n < S::kQueries / 8; ++n)
        __stcg(to + n * 128, make_float4(dq[4 * n], dq[4 * n + 1], dq[4 * n + 2], dq[4 * n + 3]));
      return;
    }
    const uint32_t staged = shared_ + S::kStagingAt + warpgroup_ * S::kPartBytes;
    if (leader()) wait_stores_read();
    sync();
    stage(dq, o_.scale, staged);
    publish_shared();
    sync();
    if (leader()) {
      store_box(o_.dqkv, staged, 64 * query_column(), head.h, 0, 64 * tile, head.b);
      commit_stores();
    }
  }

  // 64 rows x 64 columns, rounded, as the copy engine takes them.
  __device__ __forceinline__ static void stage(const float* sums, float factor, uint32_t part) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      Fragment r;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        r[i] = pack_pair<T>(sums[8 * g + 2 * i] * factor, sums[8 * g + 2 * i + 1] * factor);
      store_matrices(part + row * 128 + ((2 * g + lane / 16) ^ row % 8) * 16, r);
    }
  }

  const HopperBackwardOperands& o_;
  const uint32_t shared_;
  const int warpgroup_;
  Turn turn_;
  HopperSlot<S> ring_;
  uint32_t stored_ = 0;  // barrier of the keys whose place a store still reads
  Sums dk_[S::kBlocks], dv_[S::kBlocks];
};
#endif

}  // namespace voltapile::cuda
