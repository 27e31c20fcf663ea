// Cross-entropy over classes divided by tp. A block takes a row; its threads take columns in turn,
// one number at a time: rows of odd length start anywhere, and the order of sums must not depend on
// where. Loads of 2 or 4 bytes by neighbouring threads are still whole sectors.
#include <climits>
#include <limits>

#include "launch.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// Targets as kernels take them.
struct Goal {
  const int32_t* labels;       // (B), or
  const float* probabilities;  // (B, classes)
  int64_t classes, first_class;
  float base, weight;  // every class has base, plus weight * its probability
};

Goal goal_of(const Targets& targets, int64_t first_class) {
  return {as<const int32_t>(targets.labels),
          targets.probabilities ? as<const float>(targets.probabilities) : nullptr,
          targets.classes,
          first_class,
          static_cast<float>(targets.smoothing / static_cast<double>(targets.classes)),
          static_cast<float>(1.0 - targets.smoothing)};
}

// Local columns that are classes; the others are padding.
int64_t real_columns(const TensorView& logits, int64_t first_class, int64_t classes) {
  return std::clamp<int64_t>(classes - first_class, 0, logits.columns());
}

// e^x, x <= 0. For 16-bit logits, whose own rounding is a thousand times coarser, in two
// instructions; results that would be subnormal are 0, as on the CPU.
template <class T>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>) return expf(x);
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}

// take(load(c), c) for a thread's columns c < n, in order; kBatch loads are in flight.
template <int kBatch, class Load, class Take>
__device__ __forceinline__ void for_columns(int n, Load&& load, Take&& take) {
  for (int first = threadIdx.x; first < n; first += kThreads * kBatch) {
    decltype(load(0)) loaded[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
      if (const int c = first + u * kThreads; c < n) loaded[u] = load(c);
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
      if (const int c = first + u * kThreads; c < n) take(loaded[u], c);
  }
}

constexpr int64_t kNoLabel = LLONG_MIN;

// Local column of a hard label, which may lie outside; kNoLabel if it is no class at all.
__device__ __forceinline__ int64_t hard_label(const Goal& goal, int64_t row) {
  const int64_t label = goal.labels[row];
  return 0 <= label && label < goal.classes ? label - goal.first_class : kNoLabel;
}

// The same for soft targets: the first of the greatest. Everybody in the block calls it.
__device__ int64_t soft_label(const Goal& goal, int64_t row) {
  const float* p = goal.probabilities + row * goal.classes;
  float most = -std::numeric_limits<float>::infinity();
  int at = INT_MAX;
  const auto take = [&](float value, int column) {
    if (value > most || (value == most && column < at)) most = value, at = column;
  };
  for_columns<8>(
      static_cast<int>(goal.classes), [&](int c) { return p[c]; }, take);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float value = __shfl_xor_sync(0xffffffffu, most, offset);
    take(value, __shfl_xor_sync(0xffffffffu, at, offset));
  }
  __shared__ float values[kWarps];
  __shared__ int columns[kWarps];
  if (threadIdx.x % 32 == 0) {
    values[threadIdx.x / 32] = most;
    columns[threadIdx.x / 32] = at;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) take(values[i], columns[i]);
  return (at == INT_MAX ? 0 : at) - goal.first_class;
}

template <bool kSoft>
__device__ __forceinline__ int64_t label_of(const Goal& goal, int64_t row) {
  if constexpr (kSoft) return soft_label(goal, row);
  else return hard_label(goal, row);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    max_kernel(const T* logits, int64_t columns, int n, float* max) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * columns;
  float most = -std::numeric_limits<float>::infinity();
  for_columns<16>(
      n, [&](int c) { return x[c]; }, [&](T v, int) { most = fmaxf(most, widen(v)); });
  most = warp_max(most);
  __shared__ float shared[kWarps];
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  most = warp_max(shared[threadIdx.x % kWarps]);
  if (threadIdx.x == 0) max[row] = most;
}

template <class T, bool kSoft>
__global__ void __launch_bounds__(kThreads)
    sums_kernel(const T* logits, int64_t columns, int n, Goal goal, const float* max, float* sums) {
  __shared__ float shared[kWarps];
  const int64_t row = blockIdx.x;
  const T* x = logits + row * columns;
  const float most = max[row];
  const int64_t label = label_of<kSoft>(goal, row);
  float exponentials = 0, total = 0, target = 0;
  const float* soft = kSoft ? goal.probabilities + row * goal.classes + goal.first_class : nullptr;
  const auto take = [&](T logit, float probability) {
    const float shifted = widen(logit) - most;
    exponentials += exponential<T>(shifted);
    total += shifted;
    if constexpr (kSoft) target += probability * shifted;
  };
  if constexpr (kSoft) {
    struct Both {
      T logit;
      float probability;
    };
    for_columns<8>(
        n,
        [&](int c) {
          return Both{x[c], soft[c]};
        },
        [&](const Both& both, int) { take(both.logit, both.probability); });
  } else {
    for_columns<16>(
        n, [&](int c) { return x[c]; }, [&](T logit, int) { take(logit, 0); });
  }
  exponentials = block_sum<kThreads>(exponentials, shared);
  total = block_sum<kThreads>(total, shared);
  if constexpr (kSoft) target = block_sum<kThreads>(target, shared);
  if (threadIdx.x > 0) return;
  const float at_label = 0 <= label && label < n ? widen(x[label]) - most : 0.0f;
  if constexpr (!kSoft) target = at_label;
  // A label that is no class has no loss: what is made of it is no number.
  if (label == kNoLabel) target = std::numeric_limits<float>::quiet_NaN();
  sums[3 * row] = exponentials;
  sums[3 * row + 1] = goal.weight * target + (goal.base != 0 ? goal.base * total : 0.0f);
  sums[3 * row + 2] = at_label;
}

constexpr int kGradientThreads = 256;
constexpr int kGradientUnroll = 4;

// Packs of N columns that begin at multiples of 16 bytes, wherever the row does, or N = 1;
// `dlogits` may be `logits`.
template <class T, bool kSoft, int N>
__global__ void __launch_bounds__(kGradientThreads)
    gradient_kernel(const T* logits, int columns, int n, Goal goal, const float* max,
                    const float* sums, double factor, const StepState* state, T* dlogits) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * columns;
  T* out = dlogits + row * columns;
  const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(x) % (N * sizeof(T)) / sizeof(T));
  const int first = (blockIdx.y * kGradientThreads * kGradientUnroll + threadIdx.x) * N - past;
  const auto whole = [&](int c) { return c >= 0 && c + N <= columns; };
  Pack<T, N> in[kGradientUnroll];
#pragma unroll
  for (int u = 0; u < kGradientUnroll; ++u)
    if (const int c = first + u * kGradientThreads * N; whole(c))
      in[u] = *reinterpret_cast<const Pack<T, N>*>(x + c);
  const auto scaled = static_cast<float>(factor * (state != nullptr ? state->loss_scale : 1.0));
  const float most = max[row], inverse = 1 / sums[3 * row];
  const float* soft = kSoft ? goal.probabilities + row * goal.classes + goal.first_class : nullptr;
  int64_t label = -1;
  float base = goal.base;
  if constexpr (!kSoft) {
    label = hard_label(goal, row);
    if (label == kNoLabel) base = std::numeric_limits<float>::quiet_NaN();
  }
  const auto gradient = [&](T logit, int c) {
    if (c >= n) return narrow<T>(0.0f);
    float target = base;
    if constexpr (kSoft) target += goal.weight * soft[c];
    else if (c == label) target += goal.weight;
    return narrow<T>((exponential<T>(widen(logit) - most) * inverse - target) * scaled);
  };
#pragma unroll
  for (int u = 0; u < kGradientUnroll; ++u) {
    const int c = first + u * kGradientThreads * N;
    if (whole(c)) {
#pragma unroll
      for (int i = 0; i < N; ++i) in[u].v[i] = gradient(in[u].v[i], c + i);
      store_pack(out + c, in[u]);
    } else if (c < columns) {
      for (int i = ::max(c, 0); i < ::min(c + N, columns); ++i) out[i] = gradient(x[i], i);
    }
  }
}

template <class T, bool kSoft>
__global__ void __launch_bounds__(kThreads)
    count_before_kernel(const T* logits, int64_t columns, int n, Goal goal, const float* max,
                        const float* sums, float* rank) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * columns;
  const int64_t label = label_of<kSoft>(goal, row);
  const float at_label = sums[3 * row + 2], most = max[row];
  int before = 0;
  for_columns<16>(
      n, [&](int c) { return x[c]; },
      [&](T logit, int c) {
        const float shifted = widen(logit) - most;
        // A logit that is not a number comes before every label: it is no right answer.
        before += !(shifted <= at_label) || (shifted == at_label && c < label) ? 1 : 0;
      });
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    before += __shfl_xor_sync(0xffffffffu, before, offset);
  __shared__ int shared[kWarps];
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = before;
  __syncthreads();
  if (threadIdx.x > 0) return;
  int count = 0;
  for (int i = 0; i < kWarps; ++i) count += shared[i];
  rank[row] = static_cast<float>(count);
}

// --- over the samples: one block, each thread a fixed share of them, then a tree.

constexpr int kTotalThreads = 256;

__device__ double block_total(double v, double* shared) {
  shared[threadIdx.x] = v;
  for (int half = kTotalThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  __syncthreads();
  const double total = shared[0];
  __syncthreads();
  return total;
}

__global__ void __launch_bounds__(kTotalThreads)
    loss_kernel(const float* sums, int64_t samples, double* total) {
  __shared__ double shared[kTotalThreads];
  double loss = 0;
  for (int64_t r = threadIdx.x; r < samples; r += kTotalThreads)
    loss += log(static_cast<double>(sums[3 * r])) - static_cast<double>(sums[3 * r + 1]);
  loss = block_total(loss, shared);
  if (threadIdx.x == 0) *total += loss;
}

__global__ void __launch_bounds__(kTotalThreads)
    correct_kernel(const float* rank, int64_t samples, double* totals) {
  __shared__ double shared[kTotalThreads];
  double first = 0, fifth = 0;
  for (int64_t i = threadIdx.x; i < samples; i += kTotalThreads) {
    first += rank[i] < 1 ? 1 : 0;
    fifth += rank[i] < 5 ? 1 : 0;
  }
  first = block_total(first, shared);
  fifth = block_total(fifth, shared);
  if (threadIdx.x > 0) return;
  totals[0] += first;
  totals[1] += fifth;
}

// Calls f(T{}, whether targets are soft, rows, columns, columns that are classes).
template <class F>
void for_rows(const TensorView& logits, int64_t first_class, const Targets& targets, F&& f) {
  VP_CHECK(logits.columns() <= 1 << 26 && targets.classes <= INT_MAX,
           "cross-entropy over {} classes, {} of them here", targets.classes, logits.columns());
  if (logits.rows() == 0) return;
  const auto rows = static_cast<unsigned>(logits.rows());
  const auto n = static_cast<int>(real_columns(logits, first_class, targets.classes));
  visit(logits.dtype, [&](auto tag) {
    if (targets.probabilities) f(tag, std::true_type{}, rows, n);
    else f(tag, std::false_type{}, rows, n);
  });
  VP_LAUNCHED();
}

}  // namespace

void CudaKernels::logits_max(TensorView logits, int64_t first_class, int64_t classes,
                             TensorView max, Stream& stream) {
  shapes::logits_max(logits, max);
  Targets targets;
  targets.classes = classes;
  for_rows(logits, first_class, targets, [&](auto tag, auto, unsigned rows, int n) {
    using T = decltype(tag);
    max_kernel<<<rows, kThreads, 0, handle_of(stream)>>>(as<const T>(logits), logits.columns(), n,
                                                         as<float>(max));
  });
}

void CudaKernels::cross_entropy_sums(TensorView logits, int64_t first_class, const Targets& targets,
                                     TensorView max, TensorView sums, Stream& stream) {
  shapes::cross_entropy("cross_entropy_sums", logits, targets, max, sums);
  for_rows(logits, first_class, targets, [&](auto tag, auto soft, unsigned rows, int n) {
    using T = decltype(tag);
    sums_kernel<T, decltype(soft)::value><<<rows, kThreads, 0, handle_of(stream)>>>(
        as<const T>(logits), logits.columns(), n, goal_of(targets, first_class),
        as<const float>(max), as<float>(sums));
  });
}

void CudaKernels::cross_entropy_loss(TensorView sums, int64_t valid, TensorView total,
                                     Stream& stream) {
  shapes::expect("cross_entropy_loss", "total", total, DType::f64, 1);
  shapes::expect("cross_entropy_loss", "sums", sums, DType::f32, sums.elements());
  loss_kernel<<<1, kTotalThreads, 0, handle_of(stream)>>>(
      as<const float>(sums), std::min(valid, sums.elements() / 3), as<double>(total));
  VP_LAUNCHED();
}

void CudaKernels::cross_entropy_backward(TensorView logits, int64_t first_class,
                                         const Targets& targets, TensorView max, TensorView sums,
                                         double factor, const StepState* state, TensorView dlogits,
                                         Stream& stream) {
  shapes::cross_entropy("cross_entropy_backward", logits, targets, max, sums);
  shapes::expect("cross_entropy_backward", "dlogits", dlogits, logits.dtype, logits.elements());
  for_rows(logits, first_class, targets, [&](auto tag, auto soft, unsigned rows, int n) {
    using T = decltype(tag);
    const T* x = as<const T>(logits);
    const auto go = [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const dim3 grid(rows,
                      blocks_for(logits.columns() + N - 1, kGradientThreads * kGradientUnroll * N));
      gradient_kernel<T, decltype(soft)::value, N>
          <<<grid, kGradientThreads, 0, handle_of(stream)>>>(
              x, static_cast<int>(logits.columns()), n, goal_of(targets, first_class),
              as<const float>(max), as<const float>(sums), factor, state, as<T>(dlogits));
    };
    // Rows of both begin at the same offset from 16 bytes, or columns are taken one by one.
    if ((reinterpret_cast<uintptr_t>(x) - reinterpret_cast<uintptr_t>(dlogits.data)) % 16 == 0)
      go(std::integral_constant<int, kWide<T>>{});
    else go(std::integral_constant<int, 1>{});
  });
}

void CudaKernels::count_before_label(TensorView logits, int64_t first_class, const Targets& targets,
                                     TensorView max, TensorView sums, TensorView rank,
                                     Stream& stream) {
  shapes::cross_entropy("count_before_label", logits, targets, max, sums);
  shapes::expect("count_before_label", "rank", rank, accumulate_type(logits.dtype), logits.rows());
  for_rows(logits, first_class, targets, [&](auto tag, auto soft, unsigned rows, int n) {
    using T = decltype(tag);
    count_before_kernel<T, decltype(soft)::value><<<rows, kThreads, 0, handle_of(stream)>>>(
        as<const T>(logits), logits.columns(), n, goal_of(targets, first_class),
        as<const float>(max), as<const float>(sums), as<float>(rank));
  });
}

void CudaKernels::count_correct(TensorView rank, int64_t valid, TensorView totals, Stream& stream) {
  shapes::expect("count_correct", "totals", totals, DType::f64, 2);
  shapes::expect("count_correct", "rank", rank, DType::f32, rank.elements());
  correct_kernel<<<1, kTotalThreads, 0, handle_of(stream)>>>(
      as<const float>(rank), std::min(valid, rank.elements()), as<double>(totals));
  VP_LAUNCHED();
}

}  // namespace voltapile::cuda
