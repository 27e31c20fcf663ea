#include "column_sums.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kAddWarps = 32;

// A block takes 32 columns, its warps every 32nd part. Bound: the second-level cache, where the
// partial sums still are.
__global__ void __launch_bounds__(32 * kAddWarps)
    add_partials_kernel(const float* partial, int64_t parts, int64_t columns, int64_t width,
                        SumTargets targets) {
  __shared__ float shared[kAddWarps][32];
  const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  if (c < width) {
#pragma unroll 8
    for (int64_t part = threadIdx.y; part < parts; part += kAddWarps)
      sum += partial[part * width + c];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= width) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kAddWarps; ++w) total += shared[w][threadIdx.x];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (c / columns == k && targets.to[k] != nullptr) targets.to[k][c - k * columns] += total;
}

template <class T>
struct Plain {
  static constexpr int kSums = 1, kUnroll = 4;
  struct Row {};
  template <int N>
  using In = Pack<T, N>;
  const T* x;
  int64_t columns;

  __device__ Row row(int64_t) const { return {}; }
  template <int N>
  __device__ __forceinline__ In<N> read(int64_t r, int64_t column) const {
    return load_once<T, N>(x + r * columns + column);
  }
  template <int N>
  __device__ __forceinline__ void use(const In<N>& in, Row, int64_t, int64_t,
                                      float (&sums)[kSums][N]) const {
#pragma unroll
    for (int k = 0; k < N; ++k) sums[0][k] += widen(in.v[k]);
  }
};

}  // namespace

void add_partials(const float* partial, int64_t parts, int64_t columns, const SumTargets& targets,
                  cudaStream_t stream) {
  const int64_t width = targets.count * columns;
  add_partials_kernel<<<blocks_for(width, 32), dim3(32, kAddWarps), 0, stream>>>(
      partial, parts, columns, width, targets);
  VP_LAUNCHED();
}

void add_column_sums(Context& context, const TensorView& x, const TensorView& sums,
                     Stream& stream) {
  visit(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Plain<T> terms{as<T>(x), x.columns()};
    visit_width<T>(wide_rows<T>(x.columns(), {x.data}), [&](auto width) {
      sum_strips<width()>(context, terms, x.rows(), x.columns(), {{as<float>(sums)}, 1}, stream);
    });
  });
}

}  // namespace voltapile::cuda
