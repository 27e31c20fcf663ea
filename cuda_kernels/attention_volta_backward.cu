// Fused attention by Volta's tensor cores, backward (Dao et al. 2022, algorithm 4, without its
// atomics). Every block owns rows of one gradient and recomputes the probabilities that they need:
// P = exp(scale * Q K^T - lse), dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dO * O)),
// dQ = scale * dS K, dK = scale * dS^T Q. Memory traffic: qkv, dout, out and dqkv once; two tiles
// again for every 64 rows, from L2. Bound: shared memory, as in forward.
#include "attention.hpp"
#include "attention_volta.cuh"

namespace voltapile::cuda {
namespace volta {
namespace {

// Whose gradient a block computes. Registers hold both left factors and the sums, which for keys
// and values together is too much from head size 96 on.
enum class Of { query, key, value, key_and_value };
template <int kD>
constexpr int kCols = kD <= 64 ? 32 : 16;
template <int kD>
constexpr bool kTogether = kD <= 80;

template <int kD>
constexpr size_t kTileBytes = 2 * kCols<kD>* kTileStride<kD> * sizeof(__half);
template <int kD>
constexpr size_t kBackwardBytes = kTileBytes<kD> +
                                  (2 * kWarps * kScores<kCols<kD>> + 2 * kCols<kD>)*sizeof(float);

struct Operands {
  const __half *dout, *qkv;
  const float *lse, *dots;  // (B, H, T); dots: rowsum(dO * O)
  __half* dqkv;
};

// dots (B,H,T) = sums over D of dout * out (B,T,H,D); eight lanes a sum.
__global__ void __launch_bounds__(kThreads)
    dot_kernel(const __half* __restrict__ dout, const __half* __restrict__ out, Heads heads,
               int64_t rows, float* __restrict__ dots) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 8;
  float sum = 0;
  if (row < rows) {
    for (int column = threadIdx.x % 8 * 8; column < heads.dim; column += 64) {
      const auto a = *reinterpret_cast<const Pack<__half, 8>*>(dout + row * heads.dim + column);
      const auto b = *reinterpret_cast<const Pack<__half, 8>*>(out + row * heads.dim + column);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += widen(a.v[i]) * widen(b.v[i]);
    }
  }
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (row >= rows || threadIdx.x % 8 != 0) return;
  const int64_t head = row % heads.heads, token = row / heads.heads;
  const int64_t batch = token / heads.tokens;
  dots[(batch * heads.heads + head) * heads.tokens + token % heads.tokens] = sum;
}

// lse (to base 2) and dot of a tile's queries, or of a lane's one query.
struct Statistics {
  float lse = 0, dot = 0;
  __device__ __forceinline__ void fetch(const Operands& o, int64_t head_begin, int row, int rows) {
    lse = row < rows ? kLog2E * o.lse[head_begin + row] : 0;
    dot = row < rows ? o.dots[head_begin + row] : 0;
  }
};

// Scores become probabilities and, where their gradients are wanted, dP becomes dS, both rounded to
// f16; columns from `valid` on get 0. Statistics are of the row, or of the columns (lse[], dot[]).
template <int kD, Of kOf>
__device__ __forceinline__ void differentiate(float* scores, float* slopes, float scale, int valid,
                                              Statistics of_row, const float* lse,
                                              const float* dot) {
  constexpr int kMine = kCols<kD> / 2;
  const Lane lane;
  float p[kMine], ds[kMine];
  read_scores<kCols<kD>>(scores, lane, p);
  if constexpr (kOf != Of::value) read_scores<kCols<kD>>(slopes, lane, ds);
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int column = lane.half * kMine + i;
    const float shift = kOf == Of::query ? of_row.lse : lse[column];
    p[i] = column < valid ? power_of_two(p[i] * scale - shift) : 0;
    if constexpr (kOf != Of::value)
      ds[i] = p[i] * (ds[i] - (kOf == Of::query ? of_row.dot : dot[column]));
  }
  __syncwarp();
  if constexpr (kOf == Of::value || kOf == Of::key_and_value)
    write_factors<kCols<kD>>(scores, lane, p);
  if constexpr (kOf != Of::value) write_factors<kCols<kD>>(slopes, lane, ds);
  __syncwarp();
}

template <int kD, Of kOf>
__device__ __forceinline__ void gradients(const Operands& o, const Heads& heads) {
  constexpr bool kQuery = kOf == Of::query;
  constexpr bool kSlopes = kOf != Of::value;  // whether gradients of scores are needed
  constexpr bool kValue = kOf == Of::value || kOf == Of::key_and_value;
  constexpr int kTile = kCols<kD> * kTileStride<kD>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto* tile_u = reinterpret_cast<__half*>(memory);
  __half* tile_w = tile_u + kTile;
  float* all_scores = reinterpret_cast<float*>(memory + kTileBytes<kD>);
  float* scores = all_scores + warp_index() * 2 * kScores<kCols<kD>>;
  float* slopes = scores + kScores<kCols<kD>>;
  float* lse = all_scores + kWarps * 2 * kScores<kCols<kD>>;
  float* dot = lse + kCols<kD>;

  const Place place(heads);
  const int64_t out_stride = heads.token_stride(), qkv_stride = 3 * out_stride;
  const __half* q = o.qkv + place.qkv;
  const __half* k = q + out_stride;
  const __half* v = k + out_stride;
  const __half* dout = o.dout + place.out;
  const int columns = place.first < place.length ? place.length : 0;
  const int rows_left = place.length - place.first;

  // S = X U^T and dP = Y W^T; for keys and values both are transposed.
  Left x[kD / 16], y[kD / 16];
  static_assert(kRows * kTileStride<kD> * sizeof(__half) <= kBackwardBytes<kD>);
  load_rows<kD>((kQuery ? q : k) + place.first * qkv_stride, qkv_stride, rows_left, heads.dim,
                tile_u, x);
  if constexpr (kSlopes) {
    const int64_t stride = kQuery ? out_stride : qkv_stride;
    load_rows<kD>((kQuery ? dout : v) + place.first * stride, stride, rows_left, heads.dim, tile_u,
                  y);
  }
  const __half* u = kQuery ? k : q;
  const __half* w = kQuery ? v : dout;
  const int64_t w_stride = kQuery ? qkv_stride : out_stride;

  const Lane lane;
  const int row = place.first + 16 * warp_index() + lane.row;
  const bool works = place.first + 16 * warp_index() < place.length;
  const int64_t head_begin = place.head * heads.tokens;
  Statistics of_row;
  if constexpr (kQuery) of_row.fetch(o, head_begin, row, place.length);
  const float scale = rsqrtf(static_cast<float>(heads.dim));

  Sum sums[kD / 16], value_sums[kD / 16];  // the second for values
#pragma unroll
  for (int n = 0; n < kD / 16; ++n) {
    if constexpr (kSlopes) wmma::fill_fragment(sums[n], 0.0f);
    if constexpr (kValue) wmma::fill_fragment(value_sums[n], 0.0f);
  }

  Transfer<kD, kCols<kD>> next_u, next_w;
  Statistics next;
  const int thread = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int from) {
    next_u.fetch(u + from * qkv_stride, qkv_stride, columns - from, heads.dim);
    next_w.fetch(w + from * w_stride, w_stride, columns - from, heads.dim);
    if (!kQuery && thread < kCols<kD>) next.fetch(o, head_begin, from + thread, columns);
  };
  fetch(0);
  for (int column = 0; column < columns; column += kCols<kD>) {
    next_u.put(tile_u);
    next_w.put(tile_w);
    if (!kQuery && thread < kCols<kD>) {
      lse[thread] = next.lse;
      dot[thread] = next.dot;
    }
    __syncthreads();
    if (column + kCols<kD> < columns) fetch(column + kCols<kD>);
    if (works) {
      multiply_transposed<kD, kCols<kD>>(x, tile_u, scores);
      if constexpr (kSlopes) multiply_transposed<kD, kCols<kD>>(y, tile_w, slopes);
      __syncwarp();
      differentiate<kD, kOf>(scores, slopes, kLog2E * scale, columns - column, of_row, lse, dot);
      if constexpr (kSlopes) add_product<kD, kCols<kD>>(slopes, tile_u, sums);
      if constexpr (kValue) add_product<kD, kCols<kD>>(scores, tile_w, value_sums);
    }
    __syncthreads();
  }

  const bool inside = row < heads.tokens, padding = row >= place.length;
  __half* to = o.dqkv + place.qkv + row * qkv_stride;
  if constexpr (kSlopes)
    write_rows<kD, kCols<kD>>(sums, scores, scale, inside, padding, to + (kQuery ? 0 : out_stride),
                              heads.dim);
  if constexpr (kValue)
    write_rows<kD, kCols<kD>>(value_sums, scores, 1, inside, padding, to + 2 * out_stride,
                              heads.dim);
}

// gridDim.y: the gradients, so that one launch fills the GPU with all of them.
template <int kD>
__global__ void __launch_bounds__(kThreads)
    attention_backward_kernel(Operands operands, Heads heads) {
  if (blockIdx.y == 0) {
    gradients<kD, Of::query>(operands, heads);
  } else if constexpr (kTogether<kD>) {
    gradients<kD, Of::key_and_value>(operands, heads);
  } else if (blockIdx.y == 1) {
    gradients<kD, Of::key>(operands, heads);
  } else {
    gradients<kD, Of::value>(operands, heads);
  }
}

}  // namespace
}  // namespace volta

bool attention_backward_volta(const TensorView& dout, const TensorView& qkv,
                              const TensorView& lengths, const TensorView& out,
                              const TensorView& lse, const TensorView& dqkv, Context& context,
                              Stream& stream) {
  using namespace volta;
  if (!has_kernel(qkv)) return false;
  for (const TensorView* t : {&dout, &qkv, &out, &dqkv})
    if (!starts_on_16_bytes(*t)) return false;
  const Heads heads = heads_of(qkv, lengths);
  const int64_t tokens = qkv.shape[1], head_rows = tokens * heads.heads;  // of a sample
  const int64_t fit = Context::kScratchBytes / (static_cast<int64_t>(sizeof(float)) * head_rows);
  if (fit == 0) return false;
  auto* dots = reinterpret_cast<float*>(context.scratch(stream));
  for (int64_t begin = 0; begin < qkv.shape[0]; begin += fit) {
    const int64_t samples = std::min(fit, qkv.shape[0] - begin), at = begin * head_rows;
    Heads part = heads;
    if (part.lengths != nullptr) part.lengths += begin;
    dot_kernel<<<blocks_for(8 * samples * head_rows, kThreads), kThreads, 0, handle_of(stream)>>>(
        as<const __half>(dout) + at * heads.dim, as<const __half>(out) + at * heads.dim, part,
        samples * head_rows, dots);
    VP_LAUNCHED();
    const Operands operands{.dout = as<const __half>(dout) + at * heads.dim,
                            .qkv = as<const __half>(qkv) + 3 * at * heads.dim,
                            .lse = as<const float>(lse) + at,
                            .dots = dots,
                            .dqkv = as<__half>(dqkv) + 3 * at * heads.dim};
    with_dim(heads.dim, [&](auto dim) {
      constexpr int kD = decltype(dim)::value;
      const auto blocks = static_cast<unsigned>(samples * heads.heads * heads.blocks);
      attention_backward_kernel<kD><<<dim3(blocks, kTogether<kD> ? 2 : 3), kThreads,
                                      kBackwardBytes<kD>, handle_of(stream)>>>(operands, part);
      VP_LAUNCHED();
    });
  }
  return true;
}

}  // namespace voltapile::cuda
