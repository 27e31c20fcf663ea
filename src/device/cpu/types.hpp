// Storage types and the types they are computed in. Kernels work on rows in the computing type;
// 16-bit rows are widened into, and rounded from, scratch that stays in cache.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "voltapile/base/dtype.hpp"
#include "voltapile/base/error.hpp"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace voltapile::cpu {

template <class T>
using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls f with a value of the C++ type behind `type`, which must be a float type.
template <class F>
void dispatch(DType type, F&& f) {
  switch (type) {
    case DType::f16: return f(Half{});
    case DType::bf16: return f(BFloat16{});
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    default: VP_CHECK(false, "a tensor of {} where numbers were expected", name_of(type));
  }
}

template <class From, class To>
inline To convert(From value) {
  if constexpr (std::is_same_v<From, To>) return value;
  else if constexpr (std::is_same_v<From, BFloat16>)
    return static_cast<To>(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, BFloat16>) return BFloat16(static_cast<float>(value));
  else return static_cast<To>(value);
}

template <class From, class To>
inline void convert_run(const From* __restrict from, int64_t n, To* __restrict to) {
  int64_t i = 0;
#ifdef __F16C__
  // g++ 12 does these one by one.
  if constexpr (std::is_same_v<From, Half> && std::is_same_v<To, float>) {
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(
          to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Half>) {
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  for (; i < n; ++i) to[i] = convert<From, To>(from[i]);
}

// The numbers at `from` in the computing type: in place where they are, else widened into
// `scratch`.
template <class T>
inline const Acc<T>* widened(const T* from, int64_t n, Acc<T>* scratch) {
  if constexpr (std::is_same_v<T, Acc<T>>) {
    return from;
  } else {
    convert_run(from, n, scratch);
    return scratch;
  }
}

// Where to compute a result that is to be stored at `to`; round_to() then stores it.
template <class T>
inline Acc<T>* result_at(T* to, Acc<T>* scratch) {
  if constexpr (std::is_same_v<T, Acc<T>>) return to;
  else return scratch;
}
template <class T>
inline void round_to(const Acc<T>* from, int64_t n, T* to) {
  if constexpr (!std::is_same_v<T, Acc<T>>) convert_run(from, n, to);
}

}  // namespace voltapile::cpu
