// The gradient's norm: one read of the gradients, bound by memory; then two tiny kernels.
#include <climits>
#include <cmath>
#include <limits>

#include "launch.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kThreads = 256;
// Pieces are cut into chunks, and blocks take equally many neighbouring chunks. The order of the
// sum follows from the pieces and the number of multiprocessors.
constexpr int kChunk = 2048;  // elements
constexpr int kBlocksPerMultiprocessor = 4;
constexpr int kTotalThreads = 1024;

constexpr __host__ __device__ int64_t chunks_of(const NormPiece& piece) {
  return (piece.end - piece.begin + kChunk - 1) / kChunk;
}

struct Partial {
  double squares;
  int64_t not_finite;
  int32_t first_bad;

  __device__ void add(const Partial& other) {
    squares += other.squares;
    not_finite += other.not_finite;
    first_bad = min(first_bad, other.first_bad);
  }
};

// The total of a block, on its first thread.
template <int kBlock>
__device__ Partial block_total(Partial mine) {
  __shared__ Partial shared[kBlock / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    mine.add({__shfl_xor_sync(0xffffffffu, mine.squares, offset),
              __shfl_xor_sync(0xffffffffu, mine.not_finite, offset),
              __shfl_xor_sync(0xffffffffu, mine.first_bad, offset)});
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 1; i < kBlock / 32; ++i) mine.add(shared[i]);
  return mine;
}

// Finds the piece in which a chunk lies, for numbers that grow. A warp looks at 32 pieces at a
// time; all of its threads call it.
class Finder {
 public:
  __device__ Finder(const NormPiece* pieces, int count) : pieces_(pieces), count_(count) {}
  struct Found {
    NormPiece piece;
    int64_t first;  // the piece's first chunk
  };
  __device__ Found operator()(int64_t chunk) {
    const int lane = threadIdx.x % 32;
    while (true) {
      const int mine = group_ + lane;
      const int64_t chunks = mine < count_ ? chunks_of(pieces_[mine]) : 0;
      int64_t upto = chunks;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int64_t below = __shfl_up_sync(0xffffffffu, upto, offset);
        if (lane >= offset) upto += below;
      }
      const int64_t all = __shfl_sync(0xffffffffu, upto, 31);
      if (chunk < before_ + all) {
        const int at = __ffs(__ballot_sync(0xffffffffu, chunk < before_ + upto)) - 1;
        const int64_t first = before_ + __shfl_sync(0xffffffffu, upto - chunks, at);
        return {pieces_[group_ + at], first};
      }
      before_ += all;
      group_ += 32;
    }
  }

 private:
  const NormPiece* pieces_;
  int count_, group_ = 0;
  int64_t before_ = 0;
};

struct Sum {
  double squares = 0;
  int not_finite = 0;
  __device__ __forceinline__ void take(float x) {
    const double wide = x;
    squares = fma(wide, wide, squares);
    not_finite += fabsf(x) <= std::numeric_limits<float>::max() ? 0 : 1;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    sum_kernel(const T* g, const NormPiece* pieces, int count, int64_t chunks, Partial* partial) {
  constexpr int N = kWide<T>;
  Partial mine = {0, 0, INT_MAX};
  Finder find(pieces, count);
  const int64_t stop = (blockIdx.x + 1) * chunks / gridDim.x;
  for (int64_t chunk = blockIdx.x * chunks / gridDim.x; chunk < stop;) {
    const auto [piece, piece_chunk] = find(chunk);
    const int64_t begin = piece.begin + (chunk - piece_chunk) * kChunk;
    chunk = min(stop, piece_chunk + chunks_of(piece));
    const int64_t end = min(piece.begin + (chunk - piece_chunk) * kChunk, piece.end);
    // Aligned packs, and what lies before and after them one by one.
    const T* from = g + begin;
    const int64_t n = end - begin;
    const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16 / sizeof(T));
    const int64_t head = past == 0 ? 0 : min(n, static_cast<int64_t>(N - past));
    const int64_t packs = (n - head) / N, tail = n - head - packs * N;
    const auto* body = reinterpret_cast<const Pack<T, N>*>(from + head);
    Sum sum;
#pragma unroll 4
    for (int64_t p = threadIdx.x; p < packs; p += kThreads) {
      const Pack<T, N> pack = body[p];
#pragma unroll
      for (int i = 0; i < N; ++i) sum.take(widen(pack.v[i]));
    }
    if (threadIdx.x < head) sum.take(widen(from[threadIdx.x]));
    if (threadIdx.x < tail) sum.take(widen(from[n - tail + threadIdx.x]));
    mine.squares += sum.squares;
    mine.not_finite += sum.not_finite;
    if (sum.not_finite > 0) mine.first_bad = min(mine.first_bad, piece.parameter);
  }
  mine = block_total<kThreads>(mine);
  if (threadIdx.x == 0) partial[blockIdx.x] = mine;
}

__global__ void __launch_bounds__(kTotalThreads)
    total_kernel(const Partial* partial, int count, double* slots, int32_t* first_bad) {
  Partial mine = {0, 0, INT_MAX};
  for (int i = threadIdx.x; i < count; i += kTotalThreads) mine.add(partial[i]);
  mine = block_total<kTotalThreads>(mine);
  if (threadIdx.x > 0) return;
  slots[NormSlots::squares] += mine.squares;
  slots[NormSlots::not_finite] += static_cast<double>(mine.not_finite);
  *first_bad = min(*first_bad, mine.first_bad);
}

__global__ void finish_kernel(const double* slots, const int32_t* first_bad, NormRules rules,
                              StepState* state, StepState* next) {
  const double squares = slots[NormSlots::squares], scale = state->loss_scale;
  const bool skip = slots[NormSlots::not_finite] > 0 || !isfinite(squares);
  state->loss = slots[NormSlots::loss] / slots[NormSlots::samples];
  state->grad_norm = sqrt(squares) / scale;
  // As torch.nn.utils.clip_grad_norm_ has it.
  const double clip = rules.clip > 0 ? fmin(1.0, rules.clip / (state->grad_norm + 1e-6)) : 1.0;
  (rules.for_next ? next : state)->multiplier = skip ? 0 : clip / scale;
  state->skip = skip ? 1 : 0;
  state->bad_parameter = skip ? *first_bad : -1;

  next->adam_step = state->adam_step + (skip ? 0 : 1);
  next->skipped_steps = state->skipped_steps + (skip ? 1 : 0);
  if (rules.for_next) {
    next->skip = 0;
    return;
  }
  int64_t good = skip ? 0 : state->good_steps + 1;
  double new_scale = scale;
  if (rules.dynamic_scale) {
    if (skip) {
      new_scale = fmax(rules.min_scale, scale / 2);
    } else if (good >= rules.growth_interval) {
      new_scale = fmin(rules.max_scale, scale * 2);
      good = 0;
    }
  }
  next->good_steps = good;
  next->loss_scale = new_scale;
}

}  // namespace

void CudaKernels::sum_squares(TensorView gradients, std::span<const NormPiece> pieces,
                              TensorView slots, TensorView first_bad, Stream& stream) {
  shapes::sum_squares("sum_squares", slots, first_bad);
  int64_t chunks = 0;
  for (const NormPiece& piece : pieces) chunks += chunks_of(piece);
  if (chunks == 0) return;
  const NormPiece* table = context_.resident(pieces);
  auto* partial = reinterpret_cast<Partial*>(context_.scratch(stream));
  const unsigned blocks =
      blocks_for(chunks, 1, int64_t{context_.gpu().multiprocessors} * kBlocksPerMultiprocessor);
  const cudaStream_t s = handle_of(stream);
  visit(gradients.dtype, [&](auto tag) {
    using T = decltype(tag);
    sum_kernel<<<blocks, kThreads, 0, s>>>(as<const T>(gradients), table,
                                           static_cast<int>(pieces.size()), chunks, partial);
  });
  VP_LAUNCHED();
  total_kernel<<<1, kTotalThreads, 0, s>>>(partial, static_cast<int>(blocks), as<double>(slots),
                                           as<int32_t>(first_bad));
  VP_LAUNCHED();
}

void CudaKernels::finish_norm(TensorView slots, TensorView first_bad, const NormRules& rules,
                              StepState* state, StepState* next, Stream& stream) {
  shapes::sum_squares("finish_norm", slots, first_bad);
  finish_kernel<<<1, 1, 0, handle_of(stream)>>>(as<const double>(slots),
                                                as<const int32_t>(first_bad), rules, state, next);
  VP_LAUNCHED();
}

}  // namespace voltapile::cuda
