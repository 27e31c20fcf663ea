// Fused attention without tensor cores, for what the tuned kernels leave out: f32 (never TF32),
// head sizes that are not multiples of 8 or lie outside 32 to 128, unaligned operands, and any GPU.
// kTile rows stay in a thread block while tiles of kTile others go by; eight threads share a row.
// Everything is f32 in shared memory. Bound: shared-memory reads of the scores' products, five
// numbers for four multiply-adds; DRAM sees each operand once, L2 once for every kTile rows.
#include "attention.hpp"
#include "launch.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kLanes = 8;  // threads of a row

template <class T>
struct PlainOperands {
  const T* dout;
  const T* qkv;
  const int* lengths;
  const T* out;
  T* forward_out;
  T* dqkv;
  float* lse;
  int tokens, heads, dim, blocks;
  float scale;
};

__device__ __forceinline__ float row_sum(float v) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}
__device__ __forceinline__ float row_max(float v) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

// One head's matrices and this thread's place: row `row` of a tile, columns lane, lane + 8, ...
template <class T, int kTile, int kDims>
struct PlainBlock {
  static constexpr int kColumns = kTile / kLanes;  // of a tile of scores, a thread
  static constexpr int kValues = kDims / kLanes;   // of a row, a thread
  static constexpr int kThreads = kTile * kLanes;

  __device__ __forceinline__ explicit PlainBlock(const PlainOperands<T>& o) : o(o) {
    block = blockIdx.x % o.blocks;
    head = blockIdx.x / o.blocks;
    const int64_t b = head / o.heads, h = head % o.heads;
    length = o.lengths ? o.lengths[b] : o.tokens;
    out_stride = int64_t{o.heads} * o.dim;
    stride = 3 * out_stride;
    in_at = b * o.tokens * stride + h * o.dim;
    out_at = b * o.tokens * out_stride + h * o.dim;
    row = threadIdx.x / kLanes;
    lane = threadIdx.x % kLanes;
    first = block * kTile;
    pitch = o.dim + 1;
  }
  // Rows [begin, begin + kTile) of a matrix; zeros beyond the length.
  __device__ __forceinline__ void load(float* tile, const T* from, int64_t from_stride,
                                       int begin) const {
    for (int i = threadIdx.x; i < kTile * o.dim; i += kThreads) {
      const int r = i / o.dim, c = i % o.dim;
      tile[r * pitch + c] = begin + r < length ? widen(from[(begin + r) * from_stride + c]) : 0.0f;
    }
  }
  // products[j] = a[row] . b[lane + 8 j]
  __device__ __forceinline__ void multiply(float (&products)[kColumns], const float* a,
                                           const float* b) const {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) products[j] = 0;
    for (int d = 0; d < o.dim; ++d) {
      const float left = a[row * pitch + d];
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        products[j] = fmaf(left, b[(lane + kLanes * j) * pitch + d], products[j]);
    }
  }
  // sums += weights[row] times the rows of b
  __device__ __forceinline__ void accumulate(float (&sums)[kValues], const float* weights,
                                             const float* b) const {
    for (int c = 0; c < kTile; ++c) {
      const float weight = weights[row * (kTile + 1) + c];
#pragma unroll
      for (int j = 0; j < kValues; ++j)
        if (lane + kLanes * j < o.dim)
          sums[j] = fmaf(weight, b[c * pitch + lane + kLanes * j], sums[j]);
    }
  }
  __device__ __forceinline__ void store(T* to, int64_t to_stride, const float (&sums)[kValues],
                                        float factor) const {
    const int at = first + row;
    if (at >= o.tokens) return;
#pragma unroll
    for (int j = 0; j < kValues; ++j)
      if (lane + kLanes * j < o.dim)
        to[at * to_stride + lane + kLanes * j] = narrow<T>(at < length ? sums[j] * factor : 0.0f);
  }
  // rowsum(dO * O) of row `at`, on the row's eight threads
  __device__ __forceinline__ float delta(int at) const {
    float sum = 0;
    if (at < length)
      for (int d = lane; d < o.dim; d += kLanes)
        sum = fmaf(widen(o.dout[out_at + at * out_stride + d]),
                   widen(o.out[out_at + at * out_stride + d]), sum);
    return row_sum(sum);
  }
  __device__ __forceinline__ float lse(int at) const {
    return at < length ? o.lse[int64_t{head} * o.tokens + at] : INFINITY;
  }

  const PlainOperands<T>& o;
  int block, head, length, row, lane, first, pitch;
  int64_t out_stride, stride, in_at, out_at;
};

template <class T, int kTile, int kDims>
__global__ __launch_bounds__(kTile* kLanes) void plain_forward(
    const __grid_constant__ PlainOperands<T> o) {
  using Block = PlainBlock<T, kTile, kDims>;
  extern __shared__ float shared[];
  const Block block(o);
  float* const q = shared;
  float* const other = q + kTile * block.pitch;  // keys, then values
  float* const weights = other + kTile * block.pitch;
  const T* const from = o.qkv + block.in_at;
  float sums[Block::kValues] = {}, most = -INFINITY, total = 0;
  if (block.first < block.length) {
    block.load(q, from, block.stride, block.first);
    for (int begin = 0; begin < block.length; begin += kTile) {
      __syncthreads();
      block.load(other, from + block.out_stride, block.stride, begin);
      __syncthreads();
      float s[Block::kColumns];
      block.multiply(s, q, other);
      float next = most;
#pragma unroll
      for (int j = 0; j < Block::kColumns; ++j) {
        s[j] = begin + block.lane + kLanes * j < block.length ? s[j] * o.scale : -INFINITY;
        next = fmaxf(next, s[j]);
      }
      next = row_max(next);
      const float shrink = expf(most - next);
      most = next;
      total *= shrink;
#pragma unroll
      for (int j = 0; j < Block::kColumns; ++j) {
        const float p = expf(s[j] - most);
        total += p;
        weights[block.row * (kTile + 1) + block.lane + kLanes * j] = p;
      }
#pragma unroll
      for (int j = 0; j < Block::kValues; ++j) sums[j] *= shrink;
      __syncthreads();
      block.load(other, from + 2 * block.out_stride, block.stride, begin);
      __syncthreads();
      block.accumulate(sums, weights, other);
    }
  }
  total = row_sum(total);
  block.store(o.forward_out + block.out_at, block.out_stride, sums, 1 / total);
  const int at = block.first + block.row;
  if (block.lane == 0 && at < o.tokens)
    o.lse[int64_t{block.head} * o.tokens + at] = at < block.length ? most + logf(total) : 0.0f;
}

// dQ of kTile queries
template <class T, int kTile, int kDims>
__global__ __launch_bounds__(kTile* kLanes) void plain_backward_queries(
    const __grid_constant__ PlainOperands<T> o) {
  using Block = PlainBlock<T, kTile, kDims>;
  extern __shared__ float shared[];
  const Block block(o);
  const int tile = kTile * block.pitch;
  float *const q = shared, *const dout = q + tile, *const k = dout + tile, *const v = k + tile;
  float* const weights = v + tile;
  const T* const from = o.qkv + block.in_at;
  float sums[Block::kValues] = {};
  if (block.first < block.length) {
    block.load(q, from, block.stride, block.first);
    block.load(dout, o.dout + block.out_at, block.out_stride, block.first);
    const float lse = block.lse(block.first + block.row);
    const float delta = block.delta(block.first + block.row);
    for (int begin = 0; begin < block.length; begin += kTile) {
      __syncthreads();
      block.load(k, from + block.out_stride, block.stride, begin);
      block.load(v, from + 2 * block.out_stride, block.stride, begin);
      __syncthreads();
      float s[Block::kColumns], dp[Block::kColumns];
      block.multiply(s, q, k);
      block.multiply(dp, dout, v);
#pragma unroll
      for (int j = 0; j < Block::kColumns; ++j) {
        const bool there = begin + block.lane + kLanes * j < block.length;
        weights[block.row * (kTile + 1) + block.lane + kLanes * j] =
            there ? expf(s[j] * o.scale - lse) * (dp[j] - delta) : 0.0f;
      }
      __syncwarp();  // a row's eight threads are of one warp
      block.accumulate(sums, weights, k);
    }
  }
  block.store(o.dqkv + block.in_at, block.stride, sums, o.scale);
}

// dK and dV of kTile keys
template <class T, int kTile, int kDims>
__global__ __launch_bounds__(kTile* kLanes) void plain_backward_keys(
    const __grid_constant__ PlainOperands<T> o) {
  using Block = PlainBlock<T, kTile, kDims>;
  extern __shared__ float shared[];
  const Block block(o);
  const int tile = kTile * block.pitch;
  float *const q = shared, *const dout = q + tile, *const k = dout + tile, *const v = k + tile;
  float* const weights = v + tile;
  float *const lse = weights + kTile * (kTile + 1), *const delta = lse + kTile;
  const T* const from = o.qkv + block.in_at;
  float dk[Block::kValues] = {}, dv[Block::kValues] = {};
  if (block.first < block.length) {
    block.load(k, from + block.out_stride, block.stride, block.first);
    block.load(v, from + 2 * block.out_stride, block.stride, block.first);
    const bool there = block.first + block.row < block.length;
    for (int begin = 0; begin < block.length; begin += kTile) {
      __syncthreads();
      block.load(q, from, block.stride, begin);
      block.load(dout, o.dout + block.out_at, block.out_stride, begin);
      const float sum = block.delta(begin + block.row);
      if (block.lane == 0) {
        lse[block.row] = block.lse(begin + block.row);
        delta[block.row] = sum;
      }
      __syncthreads();
      float p[Block::kColumns], dp[Block::kColumns];
      block.multiply(p, k, q);
      block.multiply(dp, v, dout);
      float* const own = weights + block.row * (kTile + 1) + block.lane;
#pragma unroll
      for (int j = 0; j < Block::kColumns; ++j) {
        p[j] = there ? expf(p[j] * o.scale - lse[block.lane + kLanes * j]) : 0.0f;
        own[kLanes * j] = p[j];
      }
      __syncwarp();
      block.accumulate(dv, weights, dout);
      __syncwarp();
#pragma unroll
      for (int j = 0; j < Block::kColumns; ++j)
        own[kLanes * j] = p[j] * (dp[j] - delta[block.lane + kLanes * j]);
      __syncwarp();
      block.accumulate(dk, weights, q);
    }
  }
  block.store(o.dqkv + block.in_at + block.out_stride, block.stride, dk, o.scale);
  block.store(o.dqkv + block.in_at + 2 * block.out_stride, block.stride, dv, 1);
}

template <class T>
PlainOperands<T> operands_of(const TensorView& qkv, const TensorView& lengths) {
  PlainOperands<T> o{};
  o.qkv = as<const T>(qkv);
  o.lengths = as<const int>(lengths);
  o.tokens = static_cast<int>(qkv.shape[1]);
  o.heads = static_cast<int>(qkv.shape[3]);
  o.dim = static_cast<int>(qkv.shape[4]);
  o.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(o.dim)));
  return o;
}

template <int kTile, class T, class Kernel>
void launch(Kernel kernel, PlainOperands<T> o, int64_t batch, int tiles, Stream& stream) {
  o.blocks = (o.tokens + kTile - 1) / kTile;
  const int64_t grid = batch * o.heads * o.blocks;
  if (grid == 0) return;
  const int bytes = (tiles * kTile * (o.dim + 1) + kTile * (kTile + 1) + 2 * kTile) * 4;
  VP_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<static_cast<unsigned>(grid), kTile * kLanes, bytes, handle_of(stream)>>>(o);
  VP_LAUNCHED();
}

// f(tile, most dims): two or four tiles of the greatest head size fit in Volta's 96 KiB.
template <class F>
void visit_dims(int64_t dim, F&& f) {
  VP_CHECK(0 < dim && dim <= 256,
           "attention: the cuda device has kernels for head sizes to 256, not {}", dim);
  if (dim <= 64) f(std::integral_constant<int, 32>{}, std::integral_constant<int, 64>{});
  else if (dim <= 128) f(std::integral_constant<int, 32>{}, std::integral_constant<int, 128>{});
  else f(std::integral_constant<int, 16>{}, std::integral_constant<int, 256>{});
}

}  // namespace

void attention_plain(const TensorView& qkv, const TensorView& lengths, const TensorView& out,
                     const TensorView& lse, Stream& stream) {
  visit(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    auto o = operands_of<T>(qkv, lengths);
    o.forward_out = as<T>(out);
    o.lse = as<float>(lse);
    visit_dims(o.dim, [&](auto tile, auto dims) {
      launch<tile()>(plain_forward<T, tile(), dims()>, o, qkv.shape[0], 2, stream);
    });
  });
}

void attention_backward_plain(const TensorView& dout, const TensorView& qkv,
                              const TensorView& lengths, const TensorView& out,
                              const TensorView& lse, const TensorView& dqkv, Stream& stream) {
  visit(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    auto o = operands_of<T>(qkv, lengths);
    o.dout = as<const T>(dout);
    o.out = as<const T>(out);
    o.lse = as<float>(lse);
    o.dqkv = as<T>(dqkv);
    visit_dims(o.dim, [&](auto tile, auto dims) {
      launch<tile()>(plain_backward_keys<T, tile(), dims()>, o, qkv.shape[0], 4, stream);
      launch<tile()>(plain_backward_queries<T, tile(), dims()>, o, qkv.shape[0], 4, stream);
    });
  });
}

}  // namespace voltapile::cuda
