// What a warpgroup computes in attention_hopper.cuh.
#pragma once
#include "attention_hopper_operands.cuh"

namespace voltapile::cuda {

#if VP_HAS_WGMMA
// One tile of queries in the registers of a warpgroup: a lane has parts of rows `row` and `row + 8`
// of its warp's 16.
template <class T, class S>
class HopperRows {
 public:
  // Of one tile of keys. They are passed in, and new for every tile, so that registers are free in
  // between.
  using Scores = float[S::kKeys / 2];
  using Probabilities = uint32_t[S::kKeys / 4];

  __device__ __forceinline__ explicit HopperRows(float scale) : scale_(scale * kLog2E) {}

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
  // Brings the sums to the newest maximum.
  __device__ __forceinline__ void shrink_sums() {
#pragma unroll
    for (int i = 0; i < S::kDim / 2; ++i) sums_[i] *= shrink_[i / 2 % 2];
  }
  // The newest probabilities, as the left factor of begin_sums().
  __device__ __forceinline__ void round(const Scores& s, Probabilities& p) {
#pragma unroll
    for (int i = 0; i < S::kKeys / 4; ++i) p[i] = pack_pair<T>(s[2 * i], s[2 * i + 1]);
  }

  // Divides the sums, writes them to `tile`, in the layout of queries, and their lse. `present`:
  // rows of the 64 that have a token; `valid`: that are no padding.
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
#endif

}  // namespace voltapile::cuda
