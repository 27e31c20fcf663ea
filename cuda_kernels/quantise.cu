// 8-bit storage in blocks with a scale each: one pass over memory. Every operation is rounded by
// itself, so that codes are those of the CPU.
#include <limits>

#include "launch.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRun = 8;      // numbers of a thread: a warp holds a block
constexpr int kPerWarp = 2;  // blocks whose loads are in flight
constexpr int kPerThreads = kThreads / 32 * kPerWarp * static_cast<int>(kQuantiseBlock);
static_assert(32 * kRun == kQuantiseBlock);

constexpr float kLeast = 0x1p-119f;
constexpr uint32_t kInfinity = 0x7f800000u;

__device__ __forceinline__ uint32_t warp_most(uint32_t v) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, v);
#else
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    v = max(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
#endif
}

// How the numbers of a run are rounded.
struct Nearest {
  __device__ __forceinline__ Nearest(uint64_t, uint64_t, uint32_t) {}
  __device__ __forceinline__ float operator()(float wanted, int) const { return rintf(wanted); }
};
struct AtRandom {
  __device__ __forceinline__ AtRandom(uint64_t draw, uint64_t seed, uint32_t item) {
    const auto drawn = random_words(seed, Purpose::quantise, item, draw);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = drawn[i];
  }
  __device__ __forceinline__ float operator()(float wanted, int i) const {
    const float below = floorf(wanted);
    const uint32_t half = i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16;
    return below + (static_cast<float>(half) + 0.5f < (wanted - below) * 65536.0f ? 1.0f : 0.0f);
  }
  uint32_t words[4];
};

template <class T, bool kWhole>
__device__ __forceinline__ Pack<T, kRun> load(const T* from, int64_t at, int64_t n) {
  if constexpr (kWhole) {
    return *reinterpret_cast<const Pack<T, kRun>*>(from + at);
  } else {
    Pack<T, kRun> run;
#pragma unroll
    for (int i = 0; i < kRun; ++i) run.v[i] = at + i < n ? from[at + i] : T{};
    return run;
  }
}
template <class T>
struct Halves {
  Pack<T, kRun / 2> low, high;
};
template <class T, bool kWhole>
__device__ __forceinline__ void store(const Pack<T, kRun>& run, T* to, int64_t at, int64_t n) {
  if constexpr (kWhole && sizeof(run) == 32) {
    const auto halves = __builtin_bit_cast(Halves<T>, run);
    store_pack(to + at, halves.low);
    store_pack(to + at + kRun / 2, halves.high);
  } else if constexpr (kWhole) {
    store_pack(to + at, run);
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      if (at + i < n) to[at + i] = run.v[i];
  }
}

// A warp's block; `mine` is the place of the thread's numbers.
template <class T, class Round, bool kWhole>
__device__ __forceinline__ void quantise_run(const Pack<T, kRun>& x, uint64_t seed, uint32_t item,
                                             uint64_t first, int64_t mine, int64_t n, int8_t* codes,
                                             float* scales) {
  uint32_t most = 0;  // bits of magnitudes have the magnitudes' order, NaN above all
#pragma unroll
  for (int i = 0; i < kRun; ++i) most = max(most, __float_as_uint(fabsf(widen(x.v[i]))));
  most = warp_most(most);
  const float greatest = __uint_as_float(most);
  const bool finite = most < kInfinity, counts = finite && greatest >= kLeast;
  const float inverse = counts ? __fdiv_rn(127.0f, greatest) : 0.0f;
  Pack<int8_t, kRun> code;
  const Round round((first + static_cast<uint64_t>(mine)) / kRun, seed, item);
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const float wanted = counts ? __fmul_rn(widen(x.v[i]), inverse) : 0.0f;
    code.v[i] =
        static_cast<int8_t>(__float2int_rz(fminf(fmaxf(round(wanted, i), -127.0f), 127.0f)));
  }
  store<int8_t, kWhole>(code, codes, mine, n);
  if (threadIdx.x % 32 == 0)
    scales[mine / kQuantiseBlock] = !finite  ? std::numeric_limits<float>::quiet_NaN()
                                    : counts ? __fdiv_rn(greatest, 127.0f)
                                             : 0.0f;
}

template <class T, class Round, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    quantise_kernel(const T* x, uint64_t seed, uint32_t item, const StepState* state,
                    int64_t first_index, int8_t* codes, float* scales, int64_t n) {
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int64_t begin = warp * kPerWarp * kQuantiseBlock, mine = begin + threadIdx.x % 32 * kRun;
  const int64_t step = state != nullptr ? state->inputs.step : 0;
  const auto first = static_cast<uint64_t>((step << 40) + first_index);
  if (kAligned && begin + kPerWarp * kQuantiseBlock <= n) {
    Pack<T, kRun> run[kPerWarp];
#pragma unroll
    for (int u = 0; u < kPerWarp; ++u) run[u] = load<T, true>(x, mine + u * kQuantiseBlock, n);
#pragma unroll
    for (int u = 0; u < kPerWarp; ++u)
      quantise_run<T, Round, true>(run[u], seed, item, first, mine + u * kQuantiseBlock, n, codes,
                                   scales);
    return;
  }
  for (int u = 0; u < kPerWarp; ++u) {
    if (begin + u * kQuantiseBlock >= n) return;
    const int64_t at = mine + u * kQuantiseBlock;
    quantise_run<T, Round, false>(load<T, false>(x, at, n), seed, item, first, at, n, codes,
                                  scales);
  }
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    dequantise_kernel(const int8_t* codes, const float* scales, T* y, int64_t n) {
  const int64_t first =
      (static_cast<int64_t>(blockIdx.x) * kPerWarp * kThreads + threadIdx.x) * kRun;
  Pack<int8_t, kRun> run[kPerWarp];
  float scale[kPerWarp];
#pragma unroll
  for (int u = 0; u < kPerWarp; ++u) {
    const int64_t at = first + u * kThreads * kRun;
    if (at >= n) continue;
    run[u] = kAligned && at + kRun <= n ? load<int8_t, true>(codes, at, n)
                                        : load<int8_t, false>(codes, at, n);
    scale[u] = scales[at / kQuantiseBlock];
  }
#pragma unroll
  for (int u = 0; u < kPerWarp; ++u) {
    const int64_t at = first + u * kThreads * kRun;
    if (at >= n) continue;
    Pack<T, kRun> out;
#pragma unroll
    for (int i = 0; i < kRun; ++i) out.v[i] = narrow<T>(static_cast<float>(run[u].v[i]) * scale[u]);
    if (kAligned && at + kRun <= n) store<T, true>(out, y, at, n);
    else store<T, false>(out, y, at, n);
  }
}

}  // namespace

void CudaKernels::quantise_8bit(TensorView x, const Rounding& rounding, TensorView codes,
                                TensorView scales, Stream& stream) {
  shapes::quantise("quantise_8bit", x, codes, scales);
  shapes::rounding(rounding);
  const int64_t n = x.elements();
  if (n == 0) return;
  visit(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* from = as<const T>(x);
    auto* to = as<int8_t>(codes);
    const auto go = [&](auto round, auto is_aligned) {
      using Round = typename decltype(round)::type;
      quantise_kernel<T, Round, decltype(is_aligned)::value>
          <<<blocks_for(n, kPerThreads), kThreads, 0, handle_of(stream)>>>(
              from, rounding.seed.value_or(0), rounding.item, rounding.state, rounding.first_index,
              to, as<float>(scales), n);
    };
    const auto with = [&](auto round) {
      if (aligned<kRun>(from) && aligned<kRun>(to)) go(round, std::true_type{});
      else go(round, std::false_type{});
    };
    if (rounding.seed) with(std::type_identity<AtRandom>{});
    else with(std::type_identity<Nearest>{});
  });
  VP_LAUNCHED();
}

void CudaKernels::dequantise_8bit(TensorView codes, TensorView scales, TensorView y,
                                  Stream& stream) {
  shapes::quantise("dequantise_8bit", y, codes, scales);
  const int64_t n = y.elements();
  if (n == 0) return;
  visit(y.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto* from = as<const int8_t>(codes);
    T* to = as<T>(y);
    const auto go = [&](auto is_aligned) {
      dequantise_kernel<T, decltype(is_aligned)::value>
          <<<blocks_for(n, kPerThreads), kThreads, 0, handle_of(stream)>>>(
              from, as<const float>(scales), to, n);
    };
    if (aligned<kRun>(from) && aligned<kRun>(to)) go(std::true_type{});
    else go(std::false_type{});
  });
  VP_LAUNCHED();
}

}  // namespace voltapile::cuda
