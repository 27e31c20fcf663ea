// Filling, casting, adding: one pass over memory each, bound by it.
#include <bit>

#include "launch.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // loads in flight

// As visit, with f64: losses and sums are copied and set in it.
template <class F>
void visit_float(DType type, F&& f) {
  if (type == DType::f64) return f(double{});
  visit(type, f);
}

// Through f32 where a type has no direct conversion, like the CPU.
template <class From, class To>
__device__ __forceinline__ To convert(From v) {
  if constexpr (std::is_same_v<To, double>) return static_cast<double>(widen(v));
  else if constexpr (!std::is_same_v<From, double>) return narrow<To>(widen(v));
  else if constexpr (std::is_same_v<To, __half>) return __double2half(v);
  else return narrow<To>(static_cast<float>(v));
}

// Any alignment: the ends that do not fill 16 bytes are stored one by one.
template <class Word>
__global__ void __launch_bounds__(kThreads) fill_kernel(Word* data, Word value, int64_t n) {
  constexpr int kPerPack = 16 / sizeof(Word);
  const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(data) % 16 / sizeof(Word));
  const int64_t head = past == 0 ? 0 : min(n, static_cast<int64_t>(kPerPack - past));
  const int64_t packs = (n - head) / kPerPack, tail = n - head - packs * kPerPack;
  Pack<Word, kPerPack> filled;
#pragma unroll
  for (int i = 0; i < kPerPack; ++i) filled.v[i] = value;
  auto* body = reinterpret_cast<Pack<Word, kPerPack>*>(data + head);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < packs;
       at += stride)
    body[at] = filled;
  if (blockIdx.x > 0) return;
  if (threadIdx.x < head) data[threadIdx.x] = value;
  if (threadIdx.x < tail) data[n - tail + threadIdx.x] = value;
}

template <class Word>
void fill_all(void* data, Word value, int64_t n, cudaStream_t stream) {
  constexpr int64_t kPerBlock = int64_t{kThreads} * kUnroll * (16 / sizeof(Word));
  fill_kernel<<<blocks_for(n, kPerBlock), kThreads, 0, stream>>>(static_cast<Word*>(data), value,
                                                                 n);
  VP_LAUNCHED();
}

// N numbers a thread and turn: 16 bytes of the wider type.
template <class From, class To, int N>
__global__ void __launch_bounds__(kThreads) cast_kernel(const From* from, To* to, int64_t n) {
  const int64_t packs = n / N;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kUnroll) + threadIdx.x;
  Pack<From, N> in[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (const int64_t at = first + u * kThreads; at < packs)
      in[u] = reinterpret_cast<const Pack<From, N>*>(from)[at];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t at = first + u * kThreads;
    if (at >= packs) continue;
    Pack<To, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = convert<From, To>(in[u].v[i]);
    store_pack(to + at * N, out);
  }
  if (const int64_t at = packs * N + threadIdx.x; blockIdx.x == 0 && at < n)
    to[at] = convert<From, To>(from[at]);
}

template <class From, class To>
void cast_all(const From* from, To* to, int64_t n, cudaStream_t stream) {
  constexpr int kPack = 16 / static_cast<int>(std::max(sizeof(From), sizeof(To)));
  const auto go = [&](auto pack) {
    constexpr int N = decltype(pack)::value;
    cast_kernel<From, To, N>
        <<<blocks_for(n, int64_t{kThreads} * kUnroll * N), kThreads, 0, stream>>>(from, to, n);
  };
  if (aligned<kPack>(from) && aligned<kPack>(to)) go(std::integral_constant<int, kPack>{});
  else go(std::integral_constant<int, 1>{});
  VP_LAUNCHED();
}

// `out` may be `a` or `b`: a thread reads its elements before it writes them.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_kernel(const T* a, const T* b, T* out, int64_t n) {
  const int64_t packs = n / N;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kUnroll) + threadIdx.x;
  Pack<T, N> left[kUnroll], right[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (const int64_t at = first + u * kThreads; at < packs) {
      left[u] = reinterpret_cast<const Pack<T, N>*>(a)[at];
      right[u] = reinterpret_cast<const Pack<T, N>*>(b)[at];
    }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t at = first + u * kThreads;
    if (at >= packs) continue;
#pragma unroll
    for (int i = 0; i < N; ++i)
      left[u].v[i] = narrow<T>(widen(left[u].v[i]) + widen(right[u].v[i]));
    store_pack(out + at * N, left[u]);
  }
  if (const int64_t at = packs * N + threadIdx.x; blockIdx.x == 0 && at < n)
    out[at] = narrow<T>(widen(a[at]) + widen(b[at]));
}

template <class T>
void add_all(const T* a, const T* b, T* out, int64_t n, cudaStream_t stream) {
  constexpr int kPack = kWide<T>;
  const auto go = [&](auto pack) {
    constexpr int N = decltype(pack)::value;
    add_kernel<T, N>
        <<<blocks_for(n, int64_t{kThreads} * kUnroll * N), kThreads, 0, stream>>>(a, b, out, n);
  };
  if (aligned<kPack>(a) && aligned<kPack>(b) && aligned<kPack>(out))
    go(std::integral_constant<int, kPack>{});
  else go(std::integral_constant<int, 1>{});
  VP_LAUNCHED();
}

}  // namespace

void CudaKernels::fill(TensorView t, double value, Stream& stream) {
  const int64_t n = t.elements();
  const cudaStream_t s = handle_of(stream);
  switch (t.dtype) {
    case DType::f16: return fill_all(t.data, __half_as_ushort(__double2half(value)), n, s);
    case DType::bf16: return fill_all(t.data, BFloat16(static_cast<float>(value)).bits, n, s);
    case DType::f32:
      return fill_all(t.data, std::bit_cast<uint32_t>(static_cast<float>(value)), n, s);
    case DType::i32:
      return fill_all(t.data, static_cast<uint32_t>(static_cast<int32_t>(value)), n, s);
    case DType::f64: return fill_all(t.data, std::bit_cast<uint64_t>(value), n, s);
    default: VP_CHECK(false, "fill: a tensor of {}", name_of(t.dtype));
  }
}

void CudaKernels::cast(TensorView from, TensorView to, Stream& stream) {
  shapes::expect("cast", "to", to, to.dtype, from.elements());
  const cudaStream_t s = handle_of(stream);
  visit_float(from.dtype, [&](auto from_tag) {
    using From = decltype(from_tag);
    visit_float(to.dtype, [&](auto to_tag) {
      using To = decltype(to_tag);
      if constexpr (!std::is_same_v<From, To>) {
        cast_all(as<From>(from), as<To>(to), from.elements(), s);
      } else if (from.data != to.data) {
        VP_CUDA(cudaMemcpyAsync(to.data, from.data, from.bytes(), cudaMemcpyDeviceToDevice, s));
      }
    });
  });
}

void CudaKernels::add(TensorView a, TensorView b, TensorView out, Stream& stream) {
  shapes::expect("add", "b", b, a.dtype, a.elements());
  shapes::expect("add", "out", out, a.dtype, a.elements());
  visit(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    add_all(as<T>(a), as<T>(b), as<T>(out), a.elements(), handle_of(stream));
  });
}

}  // namespace voltapile::cuda
