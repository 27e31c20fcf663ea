// Layer norm of rows, on its own or behind the residual branch. One kernel, one pass over memory:
// reads x (and the branch), writes y of the branch and the normalised rows. Bound: memory.
//
// A row of R packs stays in the registers of a warp (up to 2 packs a lane) or of a block (up to 512
// threads); longer rows are read again, from cache as far as they fit there. The variance is that
// of the differences from the mean, as on the CPU: a large mean does not swamp it.
#pragma once
#include "rows.cuh"

namespace voltapile::cuda {

template <class T>
struct Norm {
  const T *gamma, *beta;
  float eps;
  T* y;
  float *mean, *rstd;
};
template <class T>
struct Branch {
  const T *branch, *bias, *scale;  // null bias and scale: left out
  Keep keep;
  T* y;
};

constexpr int kRowThreads = 512;

enum class Owner { warp, block };  // of a row

template <class T, int kWidth, int kPacks, Owner kOwner, bool kBranch>
__global__ void __launch_bounds__(kOwner == Owner::warp ? 256 : kRowThreads)
    norm_rows_kernel(const T* x, Branch<T> branch, Norm<T> norm, int64_t rows, int columns) {
  constexpr bool kWarp = kOwner == Owner::warp;
  __shared__ float shared[2][32];
  const int thread = static_cast<int>(threadIdx.x) % (kWarp ? 32 : kRowThreads);
  const int64_t row =
      kWarp ? int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32 : int64_t{blockIdx.x};
  if (row >= rows) return;
  const auto sum_of = [&](float v, int turn) {
    if constexpr (kWarp) return warp_sum(v);
    else return block_sum(v, shared[turn]);
  };
  // Packs beyond the row are zeros, which the arithmetic takes along: branches would keep the loads
  // of the packs apart.
  const auto column_of = [&](int j) {
    return (thread / 32 * 32 * kPacks + j * 32 + thread % 32) * kWidth;
  };
  const auto there = [&](int j) { return column_of(j) < columns; };
  const auto some_column = [&](int j) { return there(j) ? column_of(j) : 0; };

  Pack<T, kWidth> in[kPacks] = {};
#pragma unroll
  for (int j = 0; j < kPacks; ++j)
    if (there(j)) in[j] = load_once<T, kWidth>(x + row * columns + column_of(j));
  if constexpr (kBranch) {
    Pack<T, kWidth> side[kPacks] = {};
#pragma unroll
    for (int j = 0; j < kPacks; ++j)
      if (there(j)) side[j] = load_once<T, kWidth>(branch.branch + row * columns + column_of(j));
    const float keep = branch.keep(row);
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      // The norm is of the rounded y, as a layer norm on its own would read it.
      const auto y = residual_pack(in[j], side[j], branch.bias, branch.scale, keep, some_column(j));
      if (there(j)) store(branch.y + row * columns + column_of(j), y);
      in[j] = there(j) ? y : Pack<T, kWidth>{};
    }
  }

  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPacks; ++j)
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += widen(in[j].v[k]);
  const float mean = sum_of(sum, 0) / static_cast<float>(columns);
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    keep_packed(in[j]);  // or fewer rows are in flight
    const float centre = there(j) ? mean : 0.0f;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float away = widen(in[j].v[k]) - centre;
      squares = fmaf(away, away, squares);
    }
  }
  const float rstd = rstd_of(sum_of(squares, 1), columns, norm.eps);
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    keep_packed(in[j]);
    float v[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) v[k] = widen(in[j].v[k]);
    const auto y = normalised_pack<T>(v, mean, rstd, norm.gamma, norm.beta, some_column(j));
    if (there(j)) store(norm.y + row * columns + column_of(j), y);
  }
  if (thread == 0) norm.mean[row] = mean, norm.rstd[row] = rstd;
}

// Of rows that do not fit in registers. A thread reads only what it wrote itself.
template <class T, int kWidth, bool kBranch>
__global__ void __launch_bounds__(kRowThreads)
    norm_long_rows_kernel(const T* x, Branch<T> branch, Norm<T> norm, int64_t columns) {
  __shared__ float shared[2][32];
  const int64_t begin = int64_t{blockIdx.x} * columns;
  const auto each = [&](auto&& use) {
    for (int64_t c = threadIdx.x * kWidth; c < columns; c += kRowThreads * kWidth) use(c);
  };
  if constexpr (kBranch) {
    const float keep = branch.keep(blockIdx.x);
    each([&](int64_t c) {
      store(branch.y + begin + c, residual_pack(load<T, kWidth>(x + begin + c),
                                                load<T, kWidth>(branch.branch + begin + c),
                                                branch.bias, branch.scale, keep, c));
    });
    x = branch.y;
  }
  float sum = 0;
  each([&](int64_t c) {
    const auto in = load<T, kWidth>(x + begin + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += widen(in.v[k]);
  });
  const float mean = block_sum(sum, shared[0]) / static_cast<float>(columns);
  float squares = 0;
  each([&](int64_t c) {
    const auto in = load<T, kWidth>(x + begin + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      squares = fmaf(widen(in.v[k]) - mean, widen(in.v[k]) - mean, squares);
  });
  const float rstd = rstd_of(block_sum(squares, shared[1]), columns, norm.eps);
  each([&](int64_t c) {
    const auto in = load<T, kWidth>(x + begin + c);
    float v[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) v[k] = widen(in.v[k]);
    store(norm.y + begin + c, normalised_pack<T>(v, mean, rstd, norm.gamma, norm.beta, c));
  });
  if (threadIdx.x == 0) norm.mean[blockIdx.x] = mean, norm.rstd[blockIdx.x] = rstd;
}

template <bool kBranch, class T>
void norm_rows(const T* x, const Branch<T>& branch, const Norm<T>& norm, int64_t rows,
               int64_t columns, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  const bool wide = wide_rows<T>(columns, {x, branch.branch, branch.bias, branch.scale, branch.y,
                                           norm.gamma, norm.beta, norm.y});
  visit_width<T>(wide, [&](auto width) {
    constexpr int kWidth = width();
    const int64_t packs = columns / kWidth;
    const auto by_warps = [&](auto held) {
      norm_rows_kernel<T, kWidth, held(), Owner::warp, kBranch>
          <<<blocks_for(rows, 8), 256, 0, stream>>>(x, branch, norm, rows,
                                                    static_cast<int>(columns));
    };
    const auto by_blocks = [&](auto held) {
      norm_rows_kernel<T, kWidth, held(), Owner::block, kBranch>
          <<<blocks_for(rows, 1), 32 * blocks_for(packs, 32 * held()), 0, stream>>>(
              x, branch, norm, rows, static_cast<int>(columns));
    };
    if (packs <= 32) by_warps(std::integral_constant<int, 1>{});
    else if (packs <= 64) by_warps(std::integral_constant<int, 2>{});
    else if (packs <= kRowThreads) by_blocks(std::integral_constant<int, 2>{});
    else if (packs <= 4 * kRowThreads) by_blocks(std::integral_constant<int, 4>{});
    else
      norm_long_rows_kernel<T, kWidth, kBranch>
          <<<blocks_for(rows, 1), kRowThreads, 0, stream>>>(x, branch, norm, columns);
    VP_LAUNCHED();
  });
}

}  // namespace voltapile::cuda
