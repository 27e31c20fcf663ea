// Fused attention by Volta's tensor cores, forward (Dao et al. 2022, algorithm 1; online softmax by
// Milakov and Gimelshein 2018). Memory traffic: qkv and out once, lse once; keys and values again
// for every 64 queries, from L2. Bound: on sm_70, shared memory, which gives each warp a right
// factor of 512 bytes for each product of 16x16x16.
#include "attention.hpp"
#include "attention_volta.cuh"

namespace voltapile::cuda {
namespace volta {
namespace {

constexpr int kCols = 32;  // keys of a tile

template <int kD>
constexpr size_t kForwardBytes =
    2 * kCols* kTileStride<kD> * sizeof(__half) + kWarps* kScores<kCols> * sizeof(float);

// Where the elements of a thread's accumulators lie: the rows, read from a matrix of row numbers.
__device__ __forceinline__ void find_rows(float* scores, int (&rows)[Sum::num_elements]) {
  const Lane lane;
  for (int i = 0; i < 8; ++i)
    scores[lane.row * kScoreStride<kCols> + 8 * lane.half + i] = static_cast<float>(lane.row);
  __syncwarp();
  Sum numbers;
  wmma::load_matrix_sync(numbers, scores, kScoreStride<kCols>, wmma::mem_row_major);
#pragma unroll
  for (int i = 0; i < Sum::num_elements; ++i) rows[i] = static_cast<int>(numbers.x[i]);
}

// A row's softmax so far. Exponents are to base 2: `scale` holds log2(e).
struct Softmax {
  float scale, most = -INFINITY, sum = 0;  // sum: of this lane's columns

  // A tile's scores become exp2(scale * score - most), rounded to f16; columns from `valid` on
  // get 0. Returns what earlier results of the row are to be multiplied with.
  __device__ __forceinline__ float take(float* scores, int valid) {
    const Lane lane;
    float v[kCols / 2];
    read_scores<kCols>(scores, lane, v);
    if (valid < kCols) {
#pragma unroll
      for (int i = 0; i < kCols / 2; ++i)
        if (lane.half * (kCols / 2) + i >= valid) v[i] = -INFINITY;
    }
    float peak = v[0];
#pragma unroll
    for (int i = 1; i < kCols / 2; ++i) peak = fmaxf(peak, v[i]);
    peak = fmaxf(peak, other_half(peak));
    const float before = most;
    most = fmaxf(most, peak * scale);
    const float factor = power_of_two(before - most);
    sum *= factor;
#pragma unroll
    for (int i = 0; i < kCols / 2; ++i) {
      v[i] = power_of_two(v[i] * scale - most);
      sum += v[i];
    }
    __syncwarp();
    write_factors<kCols>(scores, lane, v);
    __syncwarp();
    return factor;
  }
};

template <int kD>
__device__ __forceinline__ void rescale(Sum (&sums)[kD / 16], float factor,
                                        const int (&rows)[Sum::num_elements]) {
  // A row's greatest score seldom moves after the first tiles.
  if (__all_sync(0xffffffffu, factor == 1)) return;
#pragma unroll
  for (int i = 0; i < Sum::num_elements; ++i) {
    const float f = __shfl_sync(0xffffffffu, factor, rows[i]);
#pragma unroll
    for (int n = 0; n < kD / 16; ++n) sums[n].x[i] *= f;
  }
}

template <int kD>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(const __half* __restrict__ qkv, Heads heads, __half* __restrict__ out,
                     float* __restrict__ lse) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto* keys = reinterpret_cast<__half*>(memory);
  __half* values = keys + kCols * kTileStride<kD>;
  float* scores =
      reinterpret_cast<float*>(values + kCols * kTileStride<kD>) + warp_index() * kScores<kCols>;

  const Place place(heads);
  const int64_t stride = 3 * heads.token_stride();
  const __half* q = qkv + place.qkv;
  const __half* k = q + heads.token_stride();
  const __half* v = k + heads.token_stride();
  // Of a block of padding alone, nothing is computed.
  const int columns = place.first < place.length ? place.length : 0;

  Left queries[kD / 16];
  load_rows<kD>(q + place.first * stride, stride, place.length - place.first, heads.dim, keys,
                queries);
  const bool works = place.first + 16 * warp_index() < place.length;
  int rows[Sum::num_elements];
  find_rows(scores, rows);
  Softmax softmax{.scale = kLog2E * rsqrtf(static_cast<float>(heads.dim))};
  Sum sums[kD / 16];
#pragma unroll
  for (Sum& sum : sums) wmma::fill_fragment(sum, 0.0f);

  Transfer<kD, kCols> next_keys, next_values;
  const auto fetch = [&](int from) {
    next_keys.fetch(k + from * stride, stride, columns - from, heads.dim);
    next_values.fetch(v + from * stride, stride, columns - from, heads.dim);
  };
  fetch(0);
  for (int column = 0; column < columns; column += kCols) {
    next_keys.put(keys);
    next_values.put(values);
    __syncthreads();
    if (column + kCols < columns) fetch(column + kCols);
    if (works) {
      multiply_transposed<kD, kCols>(queries, keys, scores);
      __syncwarp();
      rescale<kD>(sums, softmax.take(scores, columns - column), rows);
      add_product<kD, kCols>(scores, values, sums);
    }
    __syncthreads();
  }

  const Lane lane;
  const int row = place.first + 16 * warp_index() + lane.row;
  const bool inside = row < heads.tokens, padding = row >= place.length;
  const float sum = softmax.sum + other_half(softmax.sum);
  write_rows<kD, kCols>(sums, scores, 1 / sum, inside, padding,
                        out + place.out + row * heads.token_stride(), heads.dim);
  if (inside && lane.half == 0)
    lse[place.head * heads.tokens + row] = padding ? 0.0f : kLn2 * softmax.most + logf(sum);
}

}  // namespace
}  // namespace volta

bool attention_volta(const TensorView& qkv, const TensorView& lengths, const TensorView& out,
                     const TensorView& lse, Context&, Stream& stream) {
  using namespace volta;
  if (!has_kernel(qkv) || !starts_on_16_bytes(qkv) || !starts_on_16_bytes(out)) return false;
  const Heads heads = heads_of(qkv, lengths);
  with_dim(heads.dim, [&](auto dim) {
    constexpr int kD = decltype(dim)::value;
    const auto blocks = static_cast<unsigned>(qkv.shape[0] * heads.heads * heads.blocks);
    attention_kernel<kD><<<blocks, kThreads, kForwardBytes<kD>, handle_of(stream)>>>(
        as<const __half>(qkv), heads, as<__half>(out), as<float>(lse));
    VP_LAUNCHED();
  });
  return true;
}

}  // namespace voltapile::cuda
