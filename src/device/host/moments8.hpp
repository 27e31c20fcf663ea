// The codes of 8-bit moments, as adamw.hpp describes them: tables, and one element at a time.
#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace voltapile::host {

enum class Map { sign, no_sign };

// Level e of the tree has 2^e magnitudes. Both ways it is a line, so two numbers a level describe
// it. Decoding finds the level in the exponent of the code as a float, of which three bits tell:
// index (e + 7) % 8. Lines that encode are the flatter the higher the level, so the right one is
// the lowest at each magnitude.
struct CodeTables {
  std::array<float, 8> step{}, base{};        // magnitude = step * (code - last) + base
  std::array<float, 8> slope{}, intercept{};  // code = round(slope * magnitude + intercept)
  size_t levels = 0;
  float last = 0;  // the greatest code, whose magnitude is thus exactly 1
};

constexpr CodeTables code_tables(int levels) {
  CodeTables t;
  t.levels = static_cast<size_t>(levels);
  t.last = static_cast<float>((1 << levels) - 1);
  for (int e = 0; e < 8; ++e) {
    double decade = 1;  // greatest magnitude of the level
    for (int i = e; i < levels - 1; ++i) decade /= 10;
    const double count = static_cast<double>(1 << e), last = 2 * count - 1;
    const double step = 0.9 * decade / count;
    const auto at = static_cast<size_t>((e + 7) % 8), level = static_cast<size_t>(e);
    t.step[at] = static_cast<float>(step);
    t.base[at] = static_cast<float>(decade + (t.last - last) * step);
    t.slope[level] = static_cast<float>(1 / step);
    t.intercept[level] = static_cast<float>(last - decade / step);
  }
  return t;
}
template <Map map>
inline constexpr CodeTables kTables = code_tables(map == Map::sign ? 7 : 8);

// Below, a block counts as zeros: its inverse would not be finite.
constexpr float kLeastScale = 0x1p-126f;
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer

template <Map map>
[[gnu::always_inline]] inline float decoded(uint8_t code, float scale) {
  constexpr const CodeTables& t = kTables<map>;
  const uint32_t index = map == Map::sign ? code & 127u : code;
  const auto number = static_cast<float>(index);
  const uint32_t level = std::bit_cast<uint32_t>(number) >> 23 & 7;
  const float magnitude =
      index == 0 ? 0.0f : std::fma(t.step[level], number - t.last, t.base[level]) * scale;
  const uint32_t sign = map == Map::sign ? (code & 128u) << 24 : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

template <Map map>
[[gnu::always_inline]] inline uint8_t encoded(float x, float inverse_scale) {
  constexpr const CodeTables& t = kTables<map>;
  const float magnitude = std::fabs(x) * inverse_scale;
  float lowest = std::fma(magnitude, t.slope[0], t.intercept[0]);
  for (size_t e = 1; e < t.levels; ++e) {
    const float line = std::fma(magnitude, t.slope[e], t.intercept[e]);
    lowest = line < lowest ? line : lowest;
  }
  const uint32_t index = std::bit_cast<uint32_t>(lowest + kRounder) & 255;
  if constexpr (map == Map::sign)
    return static_cast<uint8_t>(index | (std::bit_cast<uint32_t>(x) >> 24 & 128u));
  else return static_cast<uint8_t>(index == 0 && magnitude > 0 ? 1 : index);
}

[[gnu::always_inline]] inline float inverse_of(float scale) {
  return scale < kLeastScale ? 0.0f : 1.0f / scale;
}

}  // namespace voltapile::host
