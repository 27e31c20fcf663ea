#ifdef __x86_64__
#include <algorithm>
#include <cstdint>

#include <immintrin.h>

#include "adamw_code.hpp"
#include "moments8.hpp"

// From here to the end: what is included above must run on every processor.
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 means its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#include "adamw_loops.hpp"

namespace voltapile::host {
namespace {

struct Avx512 {
  static constexpr int64_t kWidth = 16;
  using Float = __m512;
  using Int = __m512i;
  using Table = __m512;

  static Float set(float x) { return _mm512_set1_ps(x); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float sqrt(Float a) { return _mm512_sqrt_ps(a); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float fms(Float a, Float b, Float c) { return _mm512_fmsub_ps(a, b, c); }
  static void fence() { _mm_sfence(); }

  static Float load(const float* from) { return _mm512_loadu_ps(from); }
  static Float load(const Half* from) { return _mm512_cvtph_ps(load_words(from)); }
  static Float load(const BFloat16* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_words(from)), 16));
  }

  static void store(float* to, Float x) { _mm512_storeu_ps(to, x); }
  template <class T>
  static void store(T* to, Float x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded(to, x));
  }

  static void stream(float* to, Float a, Float b) {
    _mm512_stream_ps(to, a);
    _mm512_stream_ps(to + kWidth, b);
  }
  template <class T>
  static void stream(T* to, Float a, Float b) {
    _mm512_stream_si512(
        reinterpret_cast<__m512i*>(to),
        _mm512_inserti64x4(_mm512_castsi256_si512(rounded(to, a)), rounded(to, b), 1));
  }

  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float abs(Float a) { return _mm512_abs_ps(a); }
  static float greatest(Float a) { return _mm512_reduce_max_ps(a); }

  static Int integers(int x) { return _mm512_set1_epi32(x); }
  static Int bits(Float a) { return _mm512_castps_si512(a); }
  static Float number(Int a) { return _mm512_castsi512_ps(a); }
  static Float to_float(Int a) { return _mm512_cvtepi32_ps(a); }
  static Int shift_left(Int a, unsigned by) { return _mm512_slli_epi32(a, by); }
  static Int shift_right(Int a, unsigned by) { return _mm512_srli_epi32(a, by); }
  static Int bit_and(Int a, int b) { return _mm512_and_si512(a, integers(b)); }
  static Int bit_or(Int a, Int b) { return _mm512_or_si512(a, b); }

  static Int load_codes(const uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void store_codes(uint8_t* to, Int a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a));
  }
  // Twice: lanes pick by their lowest four bits.
  static Table table(const float* eight) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(eight)); }
  static Float pick(Table t, Int index) { return _mm512_permutexvar_ps(index, t); }
  static Float zero_if_zero(Float a, Int index) {
    return _mm512_maskz_mov_ps(_mm512_test_epi32_mask(index, index), a);
  }
  static Int at_least_one_if(Int a, Float x) {
    const __mmask16 above = _mm512_cmp_ps_mask(x, set(0), _CMP_GT_OQ);
    return _mm512_mask_max_epi32(a, above, a, integers(1));
  }

 private:
  static __m256i load_words(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  static __m256i rounded(const Half*, Float x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
  }
  // As BFloat16(float). AVX512-BF16 has an instruction, which takes subnormal numbers for zeros.
  static __m256i rounded(const BFloat16*, Float x) {
    const __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_mask_or_epi32(_mm512_srli_epi32(up, 16), nan, high, _mm512_set1_epi32(0x40)));
  }
};

}  // namespace

constinit const Code kAvx512 = code_of<Avx512>("avx512");

}  // namespace voltapile::host
#endif
