#ifdef __x86_64__
#include <algorithm>
#include <cstdint>

#include <immintrin.h>

#include "adamw_code.hpp"

// From here to the end: what is included above must run on every processor.
#pragma GCC target("avx2,fma,f16c")
#include "adamw_loops.hpp"

namespace voltapile::host {
namespace {

struct Avx2 {
  static constexpr int64_t kWidth = 8;
  using Float = __m256;

  static Float set(float x) { return _mm256_set1_ps(x); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static Float sqrt(Float a) { return _mm256_sqrt_ps(a); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float fms(Float a, Float b, Float c) { return _mm256_fmsub_ps(a, b, c); }
  static void fence() { _mm_sfence(); }

  static Float load(const float* from) { return _mm256_loadu_ps(from); }
  static Float load(const Half* from) { return _mm256_cvtph_ps(load_words(from)); }
  static Float load(const BFloat16* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_words(from)), 16));
  }

  static void store(float* to, Float x) { _mm256_storeu_ps(to, x); }
  template <class T>
  static void store(T* to, Float x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), rounded(to, x));
  }

  static void stream(float* to, Float a, Float b) {
    _mm256_stream_ps(to, a);
    _mm256_stream_ps(to + kWidth, b);
  }
  template <class T>
  static void stream(T* to, Float a, Float b) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to),
                        _mm256_set_m128i(rounded(to, b), rounded(to, a)));
  }

 private:
  static __m128i load_words(const void* from) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  }
  static __m128i rounded(const Half*, Float x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
  }
  // As BFloat16(float).
  static __m128i rounded(const BFloat16*, Float x) {
    const __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16),
                                             _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }
};

}  // namespace

constinit const Code kAvx2 = code_of<Avx2>("avx2");

}  // namespace voltapile::host
#endif
