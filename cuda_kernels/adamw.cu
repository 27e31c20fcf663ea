// AdamW over a flat buffer of many tensors: one launch, one pass, bound by memory (with f32
// gradients and 16-bit weights 30 bytes a parameter).
#include "launch.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 4;    // parameters in 16 bytes of f32
constexpr int kUnroll = 2;  // packs whose loads are in flight

struct Factors {
  float multiplier, beta1, beta2, step_size, inverse_root_correction, eps, decay;
};

// As the CPU twin: in double, then rounded once.
__device__ Factors factors_of(const AdamW& rules, const StepState& state) {
  const auto t = static_cast<double>(state.adam_step + 1);
  const double lr = state.inputs.learning_rate;
  return {static_cast<float>(state.multiplier),
          static_cast<float>(rules.beta1),
          static_cast<float>(rules.beta2),
          static_cast<float>(lr / (1 - pow(rules.beta1, t))),
          static_cast<float>(1 / sqrt(1 - pow(rules.beta2, t))),
          static_cast<float>(rules.eps),
          static_cast<float>(1 - lr * rules.weight_decay)};
}

// Index of the first range that ends after `at`.
__device__ int range_after(const Range* ranges, int count, int64_t at) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ranges[middle].end <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The host's order of operations (device/host/adamw.hpp), with nothing left to be contracted.
__device__ __forceinline__ void update(float g, const Factors& f, float decay, float& master,
                                       float& m, float& v) {
  const float gradient = g * f.multiplier;
  m = fmaf(f.beta1, m, (1 - f.beta1) * gradient);
  v = fmaf(f.beta2, v, (1 - f.beta2) * gradient * gradient);
  const float denominator = fmaf(sqrtf(v), f.inverse_root_correction, f.eps);
  master = fmaf(master, decay, -(f.step_size * m / denominator));
}

// A block takes tiles of kThreads * kUnroll packs of N. `weights` is null where they are `master`.
template <class G, class T, int N>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const G* __restrict__ gradients, float* __restrict__ master, float* __restrict__ m,
                 float* __restrict__ v, T* __restrict__ weights, int64_t n,
                 const Range* __restrict__ decayed, int ranges, AdamW rules,
                 const StepState* state) {
  if (state->skip != 0) return;
  __shared__ Factors shared;
  if (threadIdx.x == 0) shared = factors_of(rules, *state);
  __syncthreads();
  const Factors f = shared;

  constexpr int kTile = kThreads * kUnroll * N;
  const int64_t tiles = (n + kTile - 1) / kTile;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t begin = tile * kTile, end = min(begin + kTile, n);
    const int64_t first = begin + threadIdx.x * N;
    Pack<G, N> pg[kUnroll];
    Pack<float, N> pp[kUnroll], pm[kUnroll], pv[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = first + u * kThreads * N;
      if (at + N > end) continue;
      pg[u] = *reinterpret_cast<const Pack<G, N>*>(gradients + at);
      pp[u] = *reinterpret_cast<const Pack<float, N>*>(master + at);
      pm[u] = *reinterpret_cast<const Pack<float, N>*>(m + at);
      pv[u] = *reinterpret_cast<const Pack<float, N>*>(v + at);
    }
    // Most tiles lie wholly inside or outside of the decayed ranges.
    const int range = range_after(decayed, ranges, begin);
    const bool starts_inside = range < ranges && decayed[range].begin <= begin;
    const bool uniform =
        range == ranges || (starts_inside ? decayed[range].end : decayed[range].begin) >= end;
    const auto decay_at = [&](int64_t at) {
      if (uniform) return starts_inside ? f.decay : 1.0f;
      int r = range;
      while (r < ranges && decayed[r].end <= at) ++r;
      return r < ranges && decayed[r].begin <= at ? f.decay : 1.0f;
    };
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = first + u * kThreads * N;
      if (at + N > end) continue;
      Pack<T, N> pw;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        update(widen(pg[u].v[i]), f, decay_at(at + i), pp[u].v[i], pm[u].v[i], pv[u].v[i]);
        pw.v[i] = narrow<T>(pp[u].v[i]);
      }
      store_pack(master + at, pp[u]);
      store_pack(m + at, pm[u]);
      store_pack(v + at, pv[u]);
      if (weights != nullptr) store_pack(weights + at, pw);
    }
    // What does not fill a pack at the very end.
    if (const int64_t at = end - (end - begin) % N + threadIdx.x; N > 1 && at < end) {
      update(widen(gradients[at]), f, decay_at(at), master[at], m[at], v[at]);
      if (weights != nullptr) weights[at] = narrow<T>(master[at]);
    }
  }
}

template <class G, class T>
void adamw_all(const Gpu& gpu, const G* gradients, float* master, float* m, float* v, T* weights,
               int64_t n, const Range* decayed, int ranges, const AdamW& rules,
               const StepState* state, cudaStream_t stream) {
  if (static_cast<const void*>(weights) == master) weights = nullptr;
  const auto go = [&](auto pack) {
    constexpr int N = decltype(pack)::value;
    // As many blocks as run at a time: each reads the step's factors once.
    const int64_t most = int64_t{gpu.multiprocessors} * (2048 / kThreads);
    const unsigned blocks = blocks_for(n, int64_t{kThreads} * kUnroll * N, most);
    adamw_kernel<G, T, N><<<blocks, kThreads, 0, stream>>>(gradients, master, m, v, weights, n,
                                                           decayed, ranges, rules, state);
  };
  if (aligned<kPack>(gradients) && aligned<kPack>(master) && aligned<kPack>(m) &&
      aligned<kPack>(v) && aligned<kPack>(weights))
    go(std::integral_constant<int, kPack>{});
  else go(std::integral_constant<int, 1>{});
  VP_LAUNCHED();
}

// One pass over memory, 12 bytes an element.
__global__ void __launch_bounds__(kThreads)
    average_kernel(const float* __restrict__ x, float keep, float rest, const StepState* state,
                   float* __restrict__ average, int64_t n) {
  if (state->skip != 0) return;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step)
    average[i] = fmaf(keep, average[i], rest * x[i]);
}

}  // namespace

void CudaKernels::average(TensorView x, double decay, const StepState* state, TensorView average,
                          Stream& stream) {
  shapes::average(x, average);
  if (x.elements() == 0) return;
  const auto keep = static_cast<float>(decay);
  const int64_t most = int64_t{context_.gpu().multiprocessors} * (2048 / kThreads) * 4;
  average_kernel<<<blocks_for(x.elements(), kThreads, most), kThreads, 0, handle_of(stream)>>>(
      as<const float>(x), keep, 1 - keep, state, as<float>(average), x.elements());
  VP_LAUNCHED();
}

void CudaKernels::adamw(TensorView gradients, TensorView master, TensorView m, TensorView v,
                        TensorView weights, std::span<const Range> decayed, const AdamW& rules,
                        const StepState* state, Stream& stream) {
  shapes::adamw(gradients, master, m, v, weights);
  VP_CHECK(gradients.dtype == DType::f32 || gradients.dtype == weights.dtype,
           "adamw: gradients of {} for weights of {}", name_of(gradients.dtype),
           name_of(weights.dtype));
  if (master.elements() == 0) return;
  const Range* ranges = decayed.empty() ? nullptr : context_.resident(decayed);
  visit(weights.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto go = [&](const auto* g) {
      adamw_all(context_.gpu(), g, as<float>(master), as<float>(m), as<float>(v), as<T>(weights),
                master.elements(), ranges, static_cast<int>(decayed.size()), rules, state,
                handle_of(stream));
    };
    if (gradients.dtype == DType::f32) go(as<const float>(gradients));
    else go(as<const T>(gradients));
  });
}

}  // namespace voltapile::cuda
