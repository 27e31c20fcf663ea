#ifdef __x86_64__
#include <algorithm>
#include <cstdint>

#include <immintrin.h>

#include "adamw_code.hpp"
#include "moments8.hpp"

// From here to the end: what is included above must run on every processor.
#pragma GCC target("avx2,fma,f16c")
#include "adamw_loops.hpp"

namespace voltapile::host {
namespace {

struct Avx2 {
  static constexpr int64_t kWidth = 8;
  using Float = __m256;
  using Int = __m256i;
  using Table = __m256;

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

  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Float abs(Float a) { return number(bit_and(bits(a), 0x7fffffff)); }
  static float greatest(Float a) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }

  static Int integers(int x) { return _mm256_set1_epi32(x); }
  static Int bits(Float a) { return _mm256_castps_si256(a); }
  static Float number(Int a) { return _mm256_castsi256_ps(a); }
  static Float to_float(Int a) { return _mm256_cvtepi32_ps(a); }
  static Int shift_left(Int a, int by) { return _mm256_slli_epi32(a, by); }
  static Int shift_right(Int a, int by) { return _mm256_srli_epi32(a, by); }
  static Int bit_and(Int a, int b) { return _mm256_and_si256(a, integers(b)); }
  static Int bit_or(Int a, Int b) { return _mm256_or_si256(a, b); }

  static Int load_codes(const uint8_t* from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static void store_codes(uint8_t* to, Int a) {
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
  }
  static Table table(const float* eight) { return _mm256_loadu_ps(eight); }
  static Float pick(Table t, Int index) { return _mm256_permutevar8x32_ps(t, index); }
  static Float zero_if_zero(Float a, Int index) {
    return number(_mm256_andnot_si256(_mm256_cmpeq_epi32(index, integers(0)), bits(a)));
  }
  static Int at_least_one_if(Int a, Float x) {
    const Int above = bits(_mm256_cmp_ps(x, set(0), _CMP_GT_OQ));
    return _mm256_max_epi32(a, bit_and(above, 1));
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
