// Dropout: one pass over memory. A draw of four words serves four neighbouring elements.
#include "launch.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 2;  // packs whose loads are in flight

// N elements a thread and turn, that start a draw; N = 1: any element of one. `y` may be `x`.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(const T* x, Dropout drop, float factor, int64_t columns, T* y, int64_t n) {
  const int64_t first_pack = static_cast<int64_t>(blockIdx.x) * (kThreads * kUnroll) + threadIdx.x;
  Pack<T, N> run[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (const int64_t at = (first_pack + u * kThreads) * N; at < n)
      run[u] = *reinterpret_cast<const Pack<T, N>*>(x + at);
  const int64_t width = drop.row_columns;
  const int64_t sample = drop.state->inputs.first_sample + drop.sample_offset;
  const int64_t first =
      (sample * drop.rows_per_sample + drop.row_offset) * width + drop.column_offset;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t at = (first_pack + u * kThreads) * N;
    if (at >= n) continue;
    const auto element = static_cast<uint64_t>(
        first + (width == columns ? at : at / columns * width + at % columns));
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const auto words = random_words(drop.seed, Purpose::dropout, drop.item, (element + i) / 4);
#pragma unroll
      for (int j = 0; j < std::min(N, 4); ++j) {
        const float uniform =
            uniform01(N > 1              ? words[j]
                      : element % 2 == 0 ? (element % 4 == 0 ? words[0] : words[2])
                                         : (element % 4 == 1 ? words[1] : words[3]));
        run[u].v[i + j] = narrow<T>(uniform >= drop.rate ? widen(run[u].v[i + j]) * factor : 0.0f);
      }
    }
    store_pack(y + at, run[u]);
  }
}

}  // namespace

void CudaKernels::dropout(TensorView x, const Dropout& given, TensorView y, Stream& stream) {
  shapes::dropout(x, given, y);
  const int64_t n = x.elements(), columns = x.columns();
  if (n == 0) return;
  if (given.rate == 0) {
    if (x.data != y.data)
      VP_CUDA(
          cudaMemcpyAsync(y.data, x.data, x.bytes(), cudaMemcpyDeviceToDevice, handle_of(stream)));
    return;
  }
  Dropout drop = given;
  if (drop.row_columns == 0) drop.row_columns = columns;
  visit(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto go = [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      dropout_kernel<T, N>
          <<<blocks_for(n, kThreads * kUnroll * N), kThreads, 0, handle_of(stream)>>>(
              as<const T>(x), drop, 1.0f / (1.0f - drop.rate), columns, as<T>(y), n);
    };
    constexpr int kPack = kWide<T>;
    const bool rows_fit =
        columns % kPack == 0 && drop.row_columns % 4 == 0 && drop.column_offset % 4 == 0;
    if (rows_fit && aligned<kPack>(as<T>(x)) && aligned<kPack>(as<T>(y)))
      go(std::integral_constant<int, kPack>{});
    else go(std::integral_constant<int, 1>{});
  });
  VP_LAUNCHED();
}

}  // namespace voltapile::cuda
