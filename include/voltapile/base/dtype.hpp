// Element types and the two 16-bit storage types. Conversions round to nearest, ties to even.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace voltapile {

enum class DType : uint8_t { f16, bf16, f32, f64, u8, i32, i64 };

constexpr size_t bytes_of(DType type) {
  switch (type) {
    case DType::f16:
    case DType::bf16: return 2;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f64:
    case DType::i64: return 8;
    case DType::u8: return 1;
  }
  return 0;
}
std::string_view name_of(DType type);

// The type in which sums, statistics and gradients of a working type are kept: f32, and f64 for
// f64.
constexpr DType accumulate_type(DType working) {
  return working == DType::f64 ? DType::f64 : DType::f32;
}

using Half = _Float16;

struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto u = std::bit_cast<uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? static_cast<uint16_t>((u >> 16) | 0x40u)
               : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

template <class T>
struct dtype_of;
template <>
struct dtype_of<Half> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<int64_t> {
  static constexpr DType value = DType::i64;
};

}  // namespace voltapile
