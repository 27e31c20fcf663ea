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

// How the numbers of a run, from -127 to 127, are rounded: the code in bits 16 to 23.
struct Nearest {
  __device__ __forceinline__ Nearest(uint64_t, uint64_t, uint32_t) {}
  __device__ __forceinline__ uint32_t operator()(float wanted, int) const {
    return static_cast<uint32_t>(__float2int_rn(wanted)) << 16;
  }
};
// Up if drawn + 1/2 < 2^16 * fraction. With n = ceil(2^16 * wanted - 1/2) the code is
// floor((n + 2^16 - 1 - drawn) / 2^16). Rounded upwards, the difference passes no integer.
struct AtRandom {
  __device__ __forceinline__ AtRandom(uint64_t draw, uint64_t seed, uint32_t item) {
    const auto drawn = random_words(seed, Purpose::quantise, item, draw);
#pragma unroll
    for (int i = 0; i < 4; ++i) rest[i] = ~drawn[i];
  }
  __device__ __forceinline__ uint32_t operator()(float wanted, int i) const {
    const int n = __float2int_ru(__fmaf_ru(wanted, 65536.0f, -0.5f));
    return static_cast<uint32_t>(n) + (i % 2 == 0 ? rest[i / 2] & 0xffffu : rest[i / 2] >> 16);
  }
  uint32_t rest[4];  // 2^16 - 1 less what was drawn, two in each
};

// The greatest magnitude's bits as an f32's, which have the magnitudes' order, NaN above all.
__device__ __forceinline__ uint32_t most_of(const Pack<float, kRun>& x) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kRun; ++i) most = max(most, __float_as_uint(fabsf(x.v[i])));
  return most;
}
template <class T>  // of 16 bits, whose magnitudes have that order too
__device__ __forceinline__ uint32_t most_of(const Pack<T, kRun>& x) {
  const auto words = __builtin_bit_cast(Pack<uint32_t, kRun / 2>, x);
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kRun / 2; ++i) most = __vmaxu2(most, words.v[i] & 0x7fff7fffu);
  const auto greatest = static_cast<uint16_t>(max(most & 0xffffu, most >> 16));
  return __float_as_uint(widen(__builtin_bit_cast(T, greatest)));
}

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
template <class T, bool kWhole>
__device__ __forceinline__ void store(const Pack<T, kRun>& run, T* to, int64_t at, int64_t n) {
  if constexpr (kWhole && sizeof(run) == 32) {
    Pack<T, kRun / 2> low, high;
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) {
      low.v[i] = run.v[i];
      high.v[i] = run.v[i + kRun / 2];
    }
    store_pack(to + at, low);
    store_pack(to + at + kRun / 2, high);
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
  const Round round((first + static_cast<uint64_t>(mine)) / kRun, seed, item);
  const uint32_t most = warp_most(most_of(x));
  const float greatest = __uint_as_float(most);
  const bool finite = most < kInfinity, counts = finite && greatest >= kLeast;
  Pack<uint32_t, kRun / 4> code{};
  static_assert(sizeof(code) == sizeof(Pack<int8_t, kRun>));  // CUDA 12 casts to no type unseen yet
  if (counts) {
    const float inverse = __fdiv_rd(127.0f, greatest);
    uint32_t shifted[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i) shifted[i] = round(__fmul_rn(widen(x.v[i]), inverse), i);
#pragma unroll
    for (int i = 0; i < kRun; i += 4)
      code.v[i / 4] = __byte_perm(__byte_perm(shifted[i], shifted[i + 1], 0x62),
                                  __byte_perm(shifted[i + 2], shifted[i + 3], 0x62), 0x5410);
  }
  store<int8_t, kWhole>(__builtin_bit_cast(Pack<int8_t, kRun>, code), codes, mine, n);
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
    const auto words = __builtin_bit_cast(Pack<uint32_t, kRun / 4>, run[u]);
    Pack<T, kRun> out;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      // 2^23 + 128 + code, put together from bytes: an addition is faster than a conversion.
      const uint32_t raised =
          __byte_perm(words.v[i / 4] ^ 0x80808080u, 0x4b000000u, 0x7650 + i % 4);
      out.v[i] = narrow<T>((__uint_as_float(raised) - 8388736.0f) * scale[u]);
    }
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
