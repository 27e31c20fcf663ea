#include "gemm.hpp"
#include "launch.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64, kDepth = 16;  // of the result, and of what is summed at once
constexpr int kEach = kTile / 16;       // rows and columns of a thread

// A matrix by its strides, in elements.
template <class T>
struct Strided {
  const T* data;
  int64_t row, column;
};

// Copies a tile to shared memory, f32, columns of it side by side; zeros beyond the matrix.
// Neighbouring threads read neighbouring addresses, whichever way the matrix lies.
template <class T>
__device__ void load_tile(const Strided<T>& m, int64_t row, int64_t column, int64_t rows,
                          int64_t columns, float (*tile)[kTile + 1]) {
  const bool along_columns = m.column == 1;
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    const int r = along_columns ? i / kDepth : i % kTile,
              c = along_columns ? i % kDepth : i / kTile;
    const bool inside = row + r < rows && column + c < columns;
    tile[c][r] = inside ? widen(m.data[(row + r) * m.row + (column + c) * m.column]) : 0.0f;
  }
}

// left (rows, inner) and right (columns, inner): both are walked along inner, in ascending order.
template <class T, class R>
__global__ void __launch_bounds__(kThreads)
    plain_product_kernel(Strided<T> left, Strided<T> right, const T* __restrict__ bias,
                         R* __restrict__ out, int64_t rows, int64_t columns, int64_t inner,
                         bool accumulate) {
  __shared__ float a[kDepth][kTile + 1], b[kDepth][kTile + 1];
  const int64_t row = int64_t{blockIdx.x} * kTile, column = int64_t{blockIdx.y} * kTile;
  const int down = threadIdx.x / 16, across = threadIdx.x % 16;
  float sum[kEach][kEach] = {};
  for (int64_t k = 0; k < inner; k += kDepth) {
    load_tile(left, row, k, rows, inner, a);
    load_tile(right, column, k, columns, inner, b);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          sum[i][j] = fmaf(a[d][down + 16 * i], b[d][across + 16 * j], sum[i][j]);
    __syncthreads();
  }
  for (int i = 0; i < kEach; ++i)
    for (int j = 0; j < kEach; ++j) {
      const int64_t r = row + down + 16 * i, c = column + across + 16 * j;
      if (r >= rows || c >= columns) continue;
      float value = sum[i][j];
      if (bias != nullptr) value += widen(bias[c]);
      if (accumulate) value += widen(out[r * columns + c]);
      out[r * columns + c] = narrow<R>(value);
    }
}

}  // namespace

void plain_product(const Product& p, const Operands& operands, cudaStream_t stream) {
  VP_CHECK(p.result == p.factors || p.result == DType::f32, "a product of {} in {}",
           name_of(p.factors), name_of(p.result));
  const dim3 grid(blocks_for(p.rows, kTile), blocks_for(p.columns, kTile));
  visit(p.factors, [&](auto tag) {
    using T = decltype(tag);
    const auto* left = static_cast<const T*>(operands.left);
    const auto* right = static_cast<const T*>(operands.right);
    const Strided<T> a =
        p.left == Layout::plain ? Strided<T>{left, p.inner, 1} : Strided<T>{left, 1, p.rows};
    const Strided<T> b =
        p.right == Layout::plain ? Strided<T>{right, 1, p.columns} : Strided<T>{right, p.inner, 1};
    const auto launch = [&](auto* out) {
      plain_product_kernel<<<grid, kThreads, 0, stream>>>(
          a, b, static_cast<const T*>(operands.bias), out, p.rows, p.columns, p.inner,
          p.into == Into::accumulate);
    };
    if (p.result == DType::f32) launch(static_cast<float*>(operands.out));
    else launch(static_cast<T*>(operands.out));
  });
  VP_LAUNCHED();
}

}  // namespace voltapile::cuda
