// Blocks of 8-bit moments, over the vector type of adamw_loops.hpp. It has also: Int; load_codes,
// store_codes (kWidth bytes, one a lane), bits, number (from and to the bits of floats), to_float,
// shift_left, shift_right, bit_and, bit_or, abs, add, max, greatest (of all lanes), Table, table
// (of 8 floats), pick (by the lowest three bits of each lane), add_if_above (lanes + 1 where a >
// b), zero_if_zero (numbers, 0 where the integer is), at_least_one_if (1 where the integer is 0 and
// the number above 0).
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
    const auto slope = V::table(t.slope.data()), intercept = V::table(t.intercept.data());
    const auto factor = V::set(inverse), rounder = V::set(kRounder);
    for (; i + V::kWidth <= n; i += V::kWidth) {
      const auto x = V::load(from + i);
      const auto magnitude = V::mul(V::abs(x), factor);
      auto level = V::integers(0);
      for (int k = 0; k + 1 < t.levels; ++k)
        level = V::add_if_above(level, magnitude, V::set(t.threshold[static_cast<size_t>(k)]));
      const auto line = V::fma(magnitude, V::pick(slope, level), V::pick(intercept, level));
      auto index = V::bit_and(V::bits(V::add(line, rounder)), 255);
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
