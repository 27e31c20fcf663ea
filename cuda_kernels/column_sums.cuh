// Sums over the rows of a matrix, for gradients of vectors that all rows share. In a fixed order:
// each block sums some rows of a strip of columns into the lane's scratch, then add_partials adds
// the blocks' sums to the gradient. The same shapes on the same GPU give the same bits.
#pragma once
#include <array>

#include "rows.cuh"

namespace voltapile::cuda {

// to[k] (columns) += sums over `parts` of partial (parts, count, columns), null ones left out; one
// kernel, which reads `partial` once.
struct SumTargets {
  std::array<float*, 4> to{};
  int count = 0;
};
void add_partials(const float* partial, int64_t parts, int64_t columns, const SumTargets& targets,
                  cudaStream_t stream);

// sums (C) f32 += column sums of x (R, C) working. Two kernels; uses the lane's scratch.
void add_column_sums(Context& context, const TensorView& x, const TensorView& sums, Stream& stream);

constexpr int kStripWarps = 8, kStripThreads = 32 * kStripWarps;

// What is summed: `Terms` has
//   kSums                       how many sums a column has,
//   kUnroll                     rows that a warp loads before it uses the first,
//   Row row(r)                  what the elements of a row share (computed once a strip),
//   In<N> read<N>(r, column)    loads, and
//   use<N>(in, row, r, column, float (&sums)[kSums][N])   adds to the sums; may store.
// Reads each operand once; bound: memory. A warp takes every kStripWarps-th row of its part.
template <int kWidth, class Terms>
__global__ void __launch_bounds__(kStripThreads, 4)
    strip_kernel(Terms terms, int64_t rows, int64_t columns, int64_t rows_of_part, float* partial) {
  constexpr int kSums = Terms::kSums, kUnroll = Terms::kUnroll, kStrip = 32 * kWidth;
  __shared__ typename Terms::Row shared_rows[kStripThreads];
  __shared__ float shared[kStripWarps][kSums][kStrip];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t column = int64_t{blockIdx.x} * kStrip + lane * kWidth;
  const int64_t begin = int64_t{blockIdx.y} * rows_of_part;
  const int64_t end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
  float sums[kSums][kWidth] = {};
  for (int64_t tile = begin; tile < end; tile += kStripThreads) {
    if constexpr (!std::is_empty_v<typename Terms::Row>) {
      __syncthreads();
      if (tile + threadIdx.x < end) shared_rows[threadIdx.x] = terms.row(tile + threadIdx.x);
      __syncthreads();
    }
    if (column >= columns) continue;
    const int tile_rows = end - tile < kStripThreads ? static_cast<int>(end - tile) : kStripThreads;
    for (int i = warp; i < tile_rows; i += kUnroll * kStripWarps) {
      typename Terms::template In<kWidth> in[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (i + u * kStripWarps < tile_rows)
          in[u] = terms.template read<kWidth>(tile + i + u * kStripWarps, column);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int at = i + u * kStripWarps;
        if (at < tile_rows)
          terms.template use<kWidth>(in[u], shared_rows[at], tile + at, column, sums);
      }
    }
  }
  if (partial == nullptr) return;
#pragma unroll
  for (int s = 0; s < kSums; ++s)
#pragma unroll
    for (int k = 0; k < kWidth; ++k) shared[warp][s][k * 32 + lane] = sums[s][k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSums * kStrip; i += kStripThreads) {
    const int s = i / kStrip, c = i % kStrip;
    const int64_t to = int64_t{blockIdx.x} * kStrip + c;
    if (to >= columns) continue;
    float total = 0;
#pragma unroll
    for (int w = 0; w < kStripWarps; ++w) total += shared[w][s][c % kWidth * 32 + c / kWidth];
    partial[(int64_t{blockIdx.y} * kSums + s) * columns + to] = total;
  }
}

// Runs `terms` over all rows and adds the sums to the targets (none: all null).
template <int kWidth, class Terms>
void sum_strips(Context& context, const Terms& terms, int64_t rows, int64_t columns,
                const SumTargets& targets, Stream& stream) {
  if (rows == 0 || columns == 0) return;
  const bool wanted = std::any_of(targets.to.begin(), targets.to.end(), [](float* t) { return t; });
  const int64_t strips = (columns + 32 * kWidth - 1) / (32 * kWidth);
  // A whole number of waves of the blocks that fit at once, four to a multiprocessor.
  const int64_t most = std::min<int64_t>(
      (rows + kStripWarps - 1) / kStripWarps,
      static_cast<int64_t>(Context::kScratchBytes / sizeof(float)) / (Terms::kSums * columns));
  const int64_t parts_wanted = std::clamp<int64_t>(4 * context.gpu().multiprocessors / strips, 1,
                                                   std::clamp<int64_t>(most, 1, 65535));
  const int64_t rows_of_part = (rows + parts_wanted - 1) / parts_wanted;
  const int64_t parts = (rows + rows_of_part - 1) / rows_of_part;
  auto* partial = wanted ? reinterpret_cast<float*>(context.scratch(stream)) : nullptr;
  const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(parts));
  strip_kernel<kWidth>
      <<<grid, kStripThreads, 0, handle_of(stream)>>>(terms, rows, columns, rows_of_part, partial);
  VP_LAUNCHED();
  if (wanted) add_partials(partial, parts, columns, targets, handle_of(stream));
}

}  // namespace voltapile::cuda
