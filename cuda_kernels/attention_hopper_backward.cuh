// Fused attention backward with the warpgroup products of sm_90a, without atomics, head sizes to 64
// and to 128. A block stays on its multiprocessor and passes over heads. A pass over keys gives
// each of two warpgroups one or two blocks of 64, whose dK and dV it holds in registers, and lets
// the queries go by in tiles of 64 (Dao 2023, algorithm 2, on transposed scores, so that P^T and
// dS^T are left factors straight from registers). dS also goes through shared memory, where the
// keys of both warpgroups meet in dQ. What more than one pass adds to dQ waits in the block's own
// memory in L2. Of the other four warps two have the operands copied and two make rowsum(dO * O).
// Traffic: each operand once from DRAM; Q and dO from L2 for every further pass, with 8 bytes a
// number of dQ. Bound: tensor cores.
#pragma once
#include "attention_hopper_backward_keys.cuh"

namespace voltapile::cuda {

#if VP_HAS_WGMMA
template <class S>
__device__ __forceinline__ void copy_keys(const HopperBackwardOperands& o, uint32_t shared) {
  HopperSlot<S> slot{shared};
  for (int index = blockIdx.x; index < o.all_heads; index += gridDim.x) {
    const HopperBackwardHead head(o, S::kKeys, index);
    for (int pass = 0; pass < head.passes; ++pass)
#pragma unroll
      for (int part = 2; part > 0; --part) {
        wait(slot.empty(), slot.parity ^ 1);
        arrive_expecting(slot.full(), S::kKeyBytes);
        copy_columns<S, S::kKeys * 128>(o.keys, slot.tile(), slot.full(), head.h, part,
                                        pass * S::kKeys, head.b);
        slot.advance();
      }
  }
}

template <class S>
__device__ __forceinline__ void copy_tiles(const HopperBackwardOperands& o, uint32_t shared) {
  HopperTurn<S> turn{shared};
  HopperOut<S> out{shared};
  for (int index = blockIdx.x; index < o.all_heads; index += gridDim.x) {
    const HopperBackwardHead head(o, S::kKeys, index);
    for (int pass = 0; pass < head.passes; ++pass)
      for (int i = 0; i < head.tiles; ++i, turn.advance()) {
        wait(turn.empty(), turn.parity ^ 1);
        arrive_expecting(turn.queries_full(), S::kTileBytes);
        copy_columns<S, S::kPartBytes>(o.queries, turn.queries(), turn.queries_full(), head.h, 0,
                                       64 * i, head.b);
        arrive_expecting(turn.dout_full(), S::kTileBytes);
        copy_columns<S, S::kPartBytes>(o.dout, turn.dout(), turn.dout_full(), head.h, 64 * i,
                                       head.b);
        if (pass > 0) continue;
        wait(out.empty(), out.parity ^ 1);
        arrive_expecting(out.full(), S::kTileBytes);
        copy_columns<S, S::kPartBytes>(o.out, out.tile(), out.full(), head.h, 64 * i, head.b);
        out.parity ^= 1;
      }
  }
}

// One of two warps, each with 32 rows of a tile of queries: lse and rowsum(dO * O), and zeros for
// padding.
template <class T, class S>
class HopperRowSums {
 public:
  __device__ __forceinline__ HopperRowSums(const HopperBackwardOperands& o, uint32_t shared,
                                           int half)
      : o_(o), shared_(shared), first_(32 * half), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() const {
    HopperTurn<S> turn{shared_};
    HopperOut<S> out{shared_};
    float* const kept =
        reinterpret_cast<float*>(o_.partial + blockIdx.x * o_.partial_stride +
                                 static_cast<int64_t>(o_.tiles) * (S::kQueries * S::kDim / 4)) +
        first_ + lane_;
    for (int index = blockIdx.x; index < o_.all_heads; index += gridDim.x) {
      const HopperBackwardHead head(o_, S::kKeys, index);
      if (head.padded) clear_gradients(head);
      const float* const lse = o_.lse + static_cast<int64_t>(index) * o_.tokens;
      for (int pass = 0; pass < head.passes; ++pass)
        for (int i = 0; i < head.tiles; ++i, turn.advance()) {
          const int valid = head.length - 64 * i;  // rows of the tile that are no padding
          const bool present = first_ + lane_ < valid;
          const float row_lse = present ? lse[64 * i + first_ + lane_] * kLog2E : INFINITY;
          float sum = 0;
          if (pass > 0) sum = kept[64 * i];
          wait(turn.dout_full(), turn.parity);
          if (pass == 0) {
            wait(out.full(), out.parity);
            add(turn, out, valid);
            __syncwarp();
            if (lane_ == 0) arrive(out.empty());
            out.parity ^= 1;
            sum = present ? load(sum_of(turn)) : 0.0f;
            if (head.passes > 1) kept[64 * i] = sum;
          }
          store(sum_of(turn) - S::kQueries * 4, row_lse);
          store(sum_of(turn), sum);
          if (head.padded && valid < 64) {
            wait(turn.queries_full(), turn.parity);
            clear(turn.queries(), valid);
            clear(turn.dout(), valid);
            publish_shared();
          }
          arrive(turn.rows_full());
        }
    }
  }

 private:
  // Where this lane's row of a tile has its sum.
  __device__ __forceinline__ uint32_t sum_of(const HopperTurn<S>& turn) const {
    return turn.rows() + (S::kQueries + first_ + lane_) * 4;
  }
  __device__ __forceinline__ static float load(uint32_t address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
  }
  __device__ __forceinline__ static void store(uint32_t address, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
  }
  __device__ __forceinline__ static Pack<T, 8> load_piece(uint32_t address) {
    uint4 raw;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "r"(address)
                 : "memory");
    return __builtin_bit_cast(Pack<T, 8>, raw);
  }

  // The sums of this warp's rows, eight lanes a row.
  __device__ __forceinline__ void add(const HopperTurn<S>& turn, const HopperOut<S>& out,
                                      int valid) const {
#pragma unroll 2
    for (int r = first_; r < first_ + 32; r += 4) {
      if (r >= valid) break;
      const int row = r + lane_ / 8;
      const uint32_t at = row * 128 + (lane_ % 8 ^ row % 8) * 16;
      float sum = 0;
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) {
        const Pack<T, 8> a = load_piece(turn.dout() + c * S::kPartBytes + at);
        const Pack<T, 8> b = load_piece(out.tile() + c * S::kPartBytes + at);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum = fmaf(widen(a.v[j]), widen(b.v[j]), sum);
      }
#pragma unroll
      for (int offset = 1; offset < 8; offset *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      if (lane_ % 8 == 0) store(turn.rows() + (S::kQueries + row) * 4, sum);
    }
  }
  // Of this warp's rows of a tile those from `valid` on.
  __device__ __forceinline__ void clear(uint32_t tile, int valid) const {
    constexpr int kPieces = S::kDim / 8;
    for (int i = max(valid, first_) * kPieces + lane_; i < (first_ + 32) * kPieces; i += 32)
      store_zeros(tile + i % kPieces / 8 * S::kPartBytes + i / kPieces * 128 + i % 8 * 16);
  }
  // Gradients of padding where no tile of the head reaches.
  __device__ __forceinline__ void clear_gradients(const HopperBackwardHead& head) const {
    const int pieces = o_.dim / 8;
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      const int done = part == 0 ? head.tiles * S::kQueries : head.passes * S::kKeys;
      for (int i = first_ + lane_; i < (o_.tokens - done) * pieces; i += 64)
        o_.gradients[(((static_cast<int64_t>(head.b) * o_.tokens + done + i / pieces) * 3 + part) *
                          o_.heads +
                      head.h) *
                         pieces +
                     i % pieces] = uint4{};
    }
  }

  const HopperBackwardOperands& o_;
  const uint32_t shared_;
  const int first_, lane_;
};
#endif

// gridDim.x: as many blocks as stay on the GPU at once, at most o.all_heads.
template <class T, class S>
__global__ __launch_bounds__(S::kThreads, 1) void attention_hopper_backward_kernel(
    const __grid_constant__ HopperBackwardOperands o) {
#if VP_HAS_WGMMA
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = shared_address(memory);
  const auto prepare = [&] {
    prefetch_map(o.queries);
    prefetch_map(o.keys);
    prefetch_map(o.dout);
    prefetch_map(o.out);
    prefetch_map(o.dqkv);
    constexpr int kConsumers = 4 * S::kGroups;  // an arrival each warp
    for (int i = 0; i < 2; ++i) {
      const HopperTurn<S> turn{shared, i};
      barrier_init(turn.queries_full(), 1);
      barrier_init(turn.dout_full(), 1);
      barrier_init(turn.rows_full(), 64);  // each thread for its row
      barrier_init(turn.empty(), kConsumers);
      barrier_init(turn.scores_full(), kConsumers);
      // dQ's columns are of different warpgroups; where there is one, its tiles are.
      barrier_init(turn.scores_empty(), 4 * S::kColumns);
    }
    const HopperOut<S> out{shared};
    barrier_init(out.full(), 1);
    barrier_init(out.empty(), 2);
    for (int i = 0; i < S::kSlots; ++i) {
      const HopperSlot<S> slot{shared, i};
      barrier_init(slot.full(), 1);
      barrier_init(slot.empty(), kConsumers);
    }
  };
  const auto copy = [&](int warp) {
    if (threadIdx.x == 0) copy_keys<S>(o, shared);
    else if (threadIdx.x == 32) copy_tiles<S>(o, shared);
    else if (warp >= 2) HopperRowSums<T, S>(o, shared, warp - 2).run();
  };
  const auto compute = [&](int warpgroup) { HopperBackwardKeys<T, S>(o, shared, warpgroup).run(); };
  run_roles<S>(prepare, copy, compute);
#endif
}

}  // namespace voltapile::cuda
