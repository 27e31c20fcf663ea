// What forward and backward of Volta's fused attention share. A block works on kRows rows of one
// head, 16 a warp, and walks over all columns; a "row" is a query, or, for the gradients of keys
// and values, a key. A warp's rows stay in registers as left factors, tiles of columns come through
// shared memory as right factors. Scores go from the tensor cores through shared memory to the
// lanes, two lanes a row, because WMMA does not say which thread holds which element.
#pragma once
#include <mma.h>

#include "launch.cuh"

namespace voltapile::cuda::volta {

namespace wmma = nvcuda::wmma;

constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16 * kWarps;
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.69314718055994531f;

using Left = wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major>;
template <class Layout>
using Right = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, Layout>;
using Sum = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// Row strides in shared memory. A tile's is an odd number of 16-byte pieces, so that eight rows
// meet all banks; so is that of scores, where each lane reads along a row of its own.
template <int kD>
constexpr int kTileStride = kD + 8;
template <int kCols>
constexpr int kScoreStride = kCols + 4;  // of floats
template <int kCols>
constexpr int kScores = 16 * kScoreStride<kCols>;  // of a warp

// The heads of one launch.
struct Heads {
  const int32_t* lengths;  // (B), or null
  int tokens, heads, dim;
  int blocks;  // of kRows rows

  __host__ __device__ int64_t token_stride() const { return static_cast<int64_t>(heads) * dim; }
};

// Where this block is, and where its head begins.
struct Place {
  int64_t head;  // batch * heads + head
  int first;     // row of the block
  int length;    // tokens that are not padding
  int64_t out;   // in (B, T, H, D)
  int64_t qkv;   // in (B, T, 3, H, D)

  __device__ explicit Place(const Heads& h)
      : head(blockIdx.x / h.blocks), first(static_cast<int>(blockIdx.x % h.blocks) * kRows) {
    const int64_t batch = head / h.heads, within = head % h.heads * h.dim;
    length = h.lengths == nullptr ? h.tokens : h.lengths[batch];
    out = batch * h.tokens * h.token_stride() + within;
    qkv = 3 * batch * h.tokens * h.token_stride() + within;
  }
};

// This lane's row and which half of the columns it works on.
struct Lane {
  int row, half;
  __device__ Lane() : row(threadIdx.x % 16), half(threadIdx.x % 32 / 16) {}
};
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }

// Rows of a matrix on their way from global to shared memory, 16 bytes at a time. What lies beyond
// the matrix becomes zero: padded products then add nothing.
template <int kD, int kTileRows>
class Transfer {
 public:
  // rows: of the matrix from here on; may be negative.
  __device__ __forceinline__ void fetch(const __half* from, int64_t stride, int rows, int dim) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int index = n * kThreads + static_cast<int>(threadIdx.x);
      const int row = index / kPieces, column = index % kPieces * 8;
      held_[n] = make_uint4(0, 0, 0, 0);
      if (index < kAll && row < rows && column < dim)
        held_[n] = *reinterpret_cast<const uint4*>(from + row * stride + column);
    }
  }
  __device__ __forceinline__ void put(__half* tile) const {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int index = n * kThreads + static_cast<int>(threadIdx.x);
      const int row = index / kPieces, column = index % kPieces * 8;
      if (index < kAll) *reinterpret_cast<uint4*>(tile + row * kTileStride<kD> + column) = held_[n];
    }
  }

 private:
  static constexpr int kPieces = kD / 8, kAll = kTileRows * kPieces;
  static constexpr int kEach = (kAll + kThreads - 1) / kThreads;
  uint4 held_[kEach];
};

// The block's rows, by way of `shared` (kRows tile rows), into its warps' registers. Ends with
// `shared` free.
template <int kD>
__device__ __forceinline__ void load_rows(const __half* from, int64_t stride, int rows, int dim,
                                          __half* shared, Left (&to)[kD / 16]) {
  Transfer<kD, kRows> transfer;
  transfer.fetch(from, stride, rows, dim);
  transfer.put(shared);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kD / 16; ++k)
    wmma::load_matrix_sync(to[k], shared + 16 * warp_index() * kTileStride<kD> + 16 * k,
                           kTileStride<kD>);
  __syncthreads();
}

// scores (16, kCols) = x u^T, of a warp; u (kCols, D) is a tile.
template <int kD, int kCols>
__device__ __forceinline__ void multiply_transposed(const Left (&x)[kD / 16], const __half* u,
                                                    float* scores) {
  Sum sums[kCols / 16];
#pragma unroll
  for (Sum& sum : sums) wmma::fill_fragment(sum, 0.0f);
#pragma unroll
  for (int k = 0; k < kD / 16; ++k)
#pragma unroll
    for (int n = 0; n < kCols / 16; ++n) {
      Right<wmma::col_major> right;
      wmma::load_matrix_sync(right, u + 16 * n * kTileStride<kD> + 16 * k, kTileStride<kD>);
      wmma::mma_sync(sums[n], x[k], right, sums[n]);
    }
#pragma unroll
  for (int n = 0; n < kCols / 16; ++n)
    wmma::store_matrix_sync(scores + 16 * n, sums[n], kScoreStride<kCols>, wmma::mem_row_major);
}

// sums (16, D) += p w, of a warp; p (16, kCols) lies where scores lay, w (kCols, D) is a tile.
template <int kD, int kCols>
__device__ __forceinline__ void add_product(const float* p, const __half* w, Sum (&sums)[kD / 16]) {
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    Left left;
    wmma::load_matrix_sync(left, reinterpret_cast<const __half*>(p) + 16 * k,
                           2 * kScoreStride<kCols>);
#pragma unroll
    for (int n = 0; n < kD / 16; ++n) {
      Right<wmma::row_major> right;
      wmma::load_matrix_sync(right, w + 16 * k * kTileStride<kD> + 16 * n, kTileStride<kD>);
      wmma::mma_sync(sums[n], left, right, sums[n]);
    }
  }
}

// A lane's part of its row of scores, and back as f16 in the same place.
template <int kCols>
__device__ __forceinline__ void read_scores(const float* scores, Lane lane, float (&v)[kCols / 2]) {
  const float* from = scores + lane.row * kScoreStride<kCols> + lane.half * (kCols / 2);
#pragma unroll
  for (int i = 0; i < kCols / 2; i += 4)
    *reinterpret_cast<float4*>(v + i) = *reinterpret_cast<const float4*>(from + i);
}
template <int kCols>
__device__ __forceinline__ void write_factors(float* scores, Lane lane,
                                              const float (&v)[kCols / 2]) {
  auto* to =
      reinterpret_cast<__half*>(scores + lane.row * kScoreStride<kCols>) + lane.half * (kCols / 2);
#pragma unroll
  for (int i = 0; i < kCols / 2; i += 8) {
    Pack<__half2, 4> pack;
#pragma unroll
    for (int j = 0; j < 4; ++j) pack.v[j] = __floats2half2_rn(v[i + 2 * j], v[i + 2 * j + 1]);
    *reinterpret_cast<Pack<__half2, 4>*>(to + i) = pack;
  }
}

// Writes a warp's sums (16, D) times this lane's factor to `to`, this lane's row, by way of the
// warp's place for scores; zeros where the row is padding.
template <int kD, int kCols>
__device__ __forceinline__ void write_rows(const Sum (&sums)[kD / 16], float* scores, float factor,
                                           bool inside, bool padding, __half* to, int dim) {
  const Lane lane;
#pragma unroll
  for (int n = 0; n < kD / 16; ++n) {
    __syncwarp();
    wmma::store_matrix_sync(scores, sums[n], kScoreStride<kCols>, wmma::mem_row_major);
    __syncwarp();
    const int column = 16 * n + 8 * lane.half;
    if (!inside || column >= dim) continue;
    const float* from = scores + lane.row * kScoreStride<kCols> + 8 * lane.half;
    Pack<__half2, 4> pack;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      pack.v[j] =
          padding ? __half2{} : __floats2half2_rn(factor * from[2 * j], factor * from[2 * j + 1]);
    *reinterpret_cast<Pack<__half2, 4>*>(to + column) = pack;
  }
}

// 2^x to two units in the last place; exactly 0 for minus infinity.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// A sum or maximum over the two lanes of a row.
__device__ __forceinline__ float other_half(float v) { return __shfl_xor_sync(0xffffffffu, v, 16); }

inline bool has_kernel(const TensorView& qkv) {
  const int64_t dim = qkv.shape[4];
  return qkv.dtype == DType::f16 && dim >= 32 && dim <= 128 && dim % 8 == 0;
}
inline bool starts_on_16_bytes(const TensorView& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
}
inline Heads heads_of(const TensorView& qkv, const TensorView& lengths) {
  return {.lengths = as<const int32_t>(lengths),
          .tokens = static_cast<int>(qkv.shape[1]),
          .heads = static_cast<int>(qkv.shape[3]),
          .dim = static_cast<int>(qkv.shape[4]),
          .blocks = static_cast<int>(blocks_for(qkv.shape[1], kRows))};
}

// Calls f with the head size, rounded up to 16, as a constant.
template <class F>
void with_dim(int64_t dim, F&& f) {
  switch ((dim + 15) / 16) {
    case 2: return f(std::integral_constant<int, 32>{});
    case 3: return f(std::integral_constant<int, 48>{});
    case 4: return f(std::integral_constant<int, 64>{});
    case 5: return f(std::integral_constant<int, 80>{});
    case 6: return f(std::integral_constant<int, 96>{});
    case 7: return f(std::integral_constant<int, 112>{});
    default: return f(std::integral_constant<int, 128>{});
  }
}

}  // namespace voltapile::cuda::volta
