// Blocks of 8-bit moments, over the vector type of adamw_loops.hpp. It has also: Int; load_codes,
// store_codes (kWidth bytes, one a lane), bits and number (floats as their bits, and back),
// to_float, shift_left, shift_right, bit_and, bit_or, abs, add, min, max, greatest (of all lanes),
// Table, table (of 8 floats), pick (by the lowest three bits of each lane), zero_if_zero (numbers,
// 0 where the integer is), at_least_one_if (integers, 1 where they are 0 and the number above 0).
#pragma once
#include "adamw_code.hpp"
#include "moments8.hpp"

namespace voltapile::host {
namespace {

template <class V, Map map>
void decode_run(const uint8_t* __restrict codes, float scale, int64_t n, float* __restrict to) {
  int64_t i = 0;
  if constexpr (V::kWidth > 1) {
    constexpr const CodeTables& t = kTables<map>;
    const auto step = V::table(t.step.data()), base = V::table(t.base.data());
    const auto factor = V::set(scale), last = V::set(-t.last);
    for (; i + V::kWidth <= n; i += V::kWidth) {
      const auto code = V::load_codes(codes + i);
      const auto index = map == Map::sign ? V::bit_and(code, 127) : code;
      const auto number = V::to_float(index);
      const auto level = V::shift_right(V::bits(number), 23);
      const auto line = V::fma(V::pick(step, level), V::add(number, last), V::pick(base, level));
      auto x = V::zero_if_zero(V::mul(line, factor), index);
      if constexpr (map == Map::sign)
        x = V::number(V::bit_or(V::bits(x), V::shift_left(V::bit_and(code, 128), 24)));
      V::store(to + i, x);
    }
  }
  for (; i < n; ++i) to[i] = decoded<map>(codes[i], scale);
}

// Gives the scale.
template <class V, Map map>
float encode_run(const float* __restrict from, int64_t n, uint8_t* __restrict codes) {
  float greatest = 0;
  int64_t i = 0;
  if constexpr (V::kWidth > 1) {
    auto found = V::set(0);
    for (; i + V::kWidth <= n; i += V::kWidth) found = V::max(found, V::abs(V::load(from + i)));
    greatest = V::greatest(found);
  }
  for (; i < n; ++i) greatest = std::max(greatest, std::fabs(from[i]));
  const float inverse = inverse_of(greatest);
  i = 0;
  if constexpr (V::kWidth > 1) {
    constexpr const CodeTables& t = kTables<map>;
    const auto factor = V::set(inverse), rounder = V::set(kRounder);
    for (; i + V::kWidth <= n; i += V::kWidth) {
      const auto x = V::load(from + i);
      const auto magnitude = V::mul(V::abs(x), factor);
      const auto line = [&](size_t e) {
        return V::fma(magnitude, V::set(t.slope[e]), V::set(t.intercept[e]));
      };
      auto lowest = line(0);
#pragma GCC unroll 8
      for (size_t e = 1; e < t.levels; ++e) lowest = V::min(lowest, line(e));
      auto index = V::bit_and(V::bits(V::add(lowest, rounder)), 255);
      if constexpr (map == Map::sign)
        index = V::bit_or(index, V::bit_and(V::shift_right(V::bits(x), 24), 128));
      else index = V::at_least_one_if(index, magnitude);
      V::store_codes(codes + i, index);
    }
  }
  for (; i < n; ++i) codes[i] = encoded<map>(from[i], inverse);
  return greatest < kLeastScale ? 0.0f : greatest;
}

}  // namespace
}  // namespace voltapile::host
