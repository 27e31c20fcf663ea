// AdamW over a flat buffer of many tensors: one launch, one pass, bound by memory (with f32
// gradients and 16-bit weights 30 bytes a parameter).
#include "launch.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 4;    // parameters in 16 bytes of f32
constexpr int kUnroll = 2;  // packs whose loads are in flight

struct Factors {
  float multiplier, beta1, beta2, inverse_root_correction, eps;
  double step_size, shrink;  // of a run: times its rate; times its rate and decay
};
// Of one run of elements.
struct RunFactors {
  float step_size, decay;
};

// As the CPU twin: in double, then rounded once.
__device__ Factors factors_of(const AdamW& rules, const StepState& state) {
  const auto t = static_cast<double>(state.adam_step + 1);
  const double lr = state.inputs.learning_rate;
  return {static_cast<float>(state.multiplier),
          static_cast<float>(rules.beta1),
          static_cast<float>(rules.beta2),
          static_cast<float>(1 / sqrt(1 - pow(rules.beta2, t))),
          static_cast<float>(rules.eps),
          lr / (1 - pow(rules.beta1, t)),
          lr * rules.weight_decay};
}
__device__ RunFactors factors_of(const Factors& f, const UpdateRun& run) {
  return {static_cast<float>(f.step_size * run.rate),
          static_cast<float>(fma(-f.shrink, run.rate * run.decay, 1.0))};
}

// Index of the first run that ends after `at`.
__device__ int run_after(const UpdateRun* runs, int count, int64_t at) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (runs[middle].end <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The host's order of operations (device/host/adamw.hpp), with nothing left to be contracted.
__device__ __forceinline__ void update(float g, const Factors& f, const RunFactors& run,
                                       float& master, float& m, float& v) {
  const float gradient = g * f.multiplier;
  m = fmaf(f.beta1, m, (1 - f.beta1) * gradient);
  v = fmaf(f.beta2, v, (1 - f.beta2) * gradient * gradient);
  const float denominator = fmaf(sqrtf(v), f.inverse_root_correction, f.eps);
  master = fmaf(master, run.decay, -(run.step_size * m / denominator));
}

template <class G, class T>
struct Buffers {
  const G* gradients;
  float *master, *m, *v;
  T* weights;  // null where they are `master`
  int64_t n;
};
struct Runs {
  const UpdateRun* list;
  int count;
};

// Elements at + threadIdx.x, at + threadIdx.x + kThreads ... below `end`: those that fill no pack,
// and tiles in which a run begins or ends. `run` is the first that ends after `at`.
template <class G, class T>
__device__ void update_singly(const Buffers<G, T>& b, const Runs& runs, int run, const Factors& f,
                              int64_t at, int64_t end) {
  for (int64_t i = at + threadIdx.x; i < end; i += kThreads) {
    while (run < runs.count && runs.list[run].end <= i) ++run;
    float master = b.master[i];
    if (run < runs.count && runs.list[run].begin <= i) {
      update(widen(b.gradients[i]), f, factors_of(f, runs.list[run]), master, b.m[i], b.v[i]);
      b.master[i] = master;
    }
    if (b.weights != nullptr) b.weights[i] = narrow<T>(master);
  }
}

// A block takes tiles of kThreads * kUnroll packs of N.
template <class G, class T, int N>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(Buffers<G, T> b, Runs runs, AdamW rules, const StepState* state) {
  if (state->skip != 0) return;
  __shared__ Factors shared;
  if (threadIdx.x == 0) shared = factors_of(rules, *state);
  __syncthreads();
  const Factors f = shared;

  constexpr int kTile = kThreads * kUnroll * N;
  const int64_t tiles = (b.n + kTile - 1) / kTile;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t begin = tile * kTile, end = min(begin + kTile, b.n);
    const int64_t first = begin + threadIdx.x * N;
    Pack<G, N> pg[kUnroll];
    Pack<float, N> pp[kUnroll], pm[kUnroll], pv[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = first + u * kThreads * N;
      if (at + N > end) continue;
      pg[u] = *reinterpret_cast<const Pack<G, N>*>(b.gradients + at);
      pp[u] = *reinterpret_cast<const Pack<float, N>*>(b.master + at);
      pm[u] = *reinterpret_cast<const Pack<float, N>*>(b.m + at);
      pv[u] = *reinterpret_cast<const Pack<float, N>*>(b.v + at);
    }
    // Found while the packs are under way. Most tiles lie wholly inside of one run.
    const int run = run_after(runs.list, runs.count, begin);
    if (run == runs.count || runs.list[run].begin > begin || runs.list[run].end < end) {
      update_singly(b, runs, run, f, begin, end);
      continue;
    }
    const RunFactors alike = factors_of(f, runs.list[run]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = first + u * kThreads * N;
      if (at + N > end) continue;
      Pack<T, N> pw;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        update(widen(pg[u].v[i]), f, alike, pp[u].v[i], pm[u].v[i], pv[u].v[i]);
        pw.v[i] = narrow<T>(pp[u].v[i]);
      }
      store_pack(b.master + at, pp[u]);
      store_pack(b.m + at, pm[u]);
      store_pack(b.v + at, pv[u]);
      if (b.weights != nullptr) store_pack(b.weights + at, pw);
    }
    update_singly(b, runs, run, f, end - (end - begin) % N, end);
  }
}

template <class G, class T>
void adamw_all(const Gpu& gpu, Buffers<G, T> b, const Runs& runs, const AdamW& rules,
               const StepState* state, cudaStream_t stream) {
  if (static_cast<const void*>(b.weights) == b.master) b.weights = nullptr;
  const auto go = [&](auto pack) {
    constexpr int N = decltype(pack)::value;
    // As many blocks as run at a time: each reads the step's factors once.
    const int64_t most = int64_t{gpu.multiprocessors} * (2048 / kThreads);
    const unsigned blocks = blocks_for(b.n, int64_t{kThreads} * kUnroll * N, most);
    adamw_kernel<G, T, N><<<blocks, kThreads, 0, stream>>>(b, runs, rules, state);
  };
  if (aligned<kPack>(b.gradients) && aligned<kPack>(b.master) && aligned<kPack>(b.m) &&
      aligned<kPack>(b.v) && aligned<kPack>(b.weights))
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
                        TensorView weights, std::span<const UpdateRun> runs, const AdamW& rules,
                        const StepState* state, Stream& stream) {
  shapes::adamw(gradients, master, m, v, weights);
  VP_CHECK(gradients.dtype == DType::f32 || gradients.dtype == weights.dtype,
           "adamw: gradients of {} for weights of {}", name_of(gradients.dtype),
           name_of(weights.dtype));
  if (master.elements() == 0) return;
  const UpdateRun* table = runs.empty() ? nullptr : context_.resident(runs);
  visit(weights.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto go = [&](const auto* g) {
      adamw_all(context_.gpu(),
                Buffers{g, as<float>(master), as<float>(m), as<float>(v), as<T>(weights),
                        master.elements()},
                Runs{table, static_cast<int>(runs.size())}, rules, state, handle_of(stream));
    };
    if (gradients.dtype == DType::f32) go(as<const float>(gradients));
    else go(as<const T>(gradients));
  });
}

}  // namespace voltapile::cuda
