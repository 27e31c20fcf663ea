#include "voltapile/base/philox.hpp"

#include <bit>
#include <cmath>

#include "voltapile/base/error.hpp"

namespace voltapile {

namespace {

// Inverse of the normal distribution: a logistic guess polished by Halley's method, which reaches
// double precision in a few steps for |x| <= 2.
double inverse_normal(double p) {
  double x = std::log(p / (1 - p)) / 1.702;
  for (int i = 0; i < 6; ++i) {
    const double f = 0.5 * std::erfc(-x * M_SQRT1_2) - p;
    const double density = std::exp(-0.5 * x * x) * 0.3989422804014327;
    x -= f / (density +
              0.5 * x * f);  // Halley's step: the normal density's derivative is -x times itself
  }
  return x;
}

}  // namespace

double truncated_normal(uint64_t seed, uint32_t item, uint64_t index) {
  const auto words = random_words(seed, Purpose::initial_weight, item, index);
  const uint64_t bits = (uint64_t{words[0]} << 21) ^ (words[1] >> 11);  // 53 bits
  const double u = (static_cast<double>(bits) + 0.5) * 0x1p-53;
  const double low = 0.5 * std::erfc(M_SQRT2);  // P(x < -2)
  return inverse_normal(low + u * (1 - 2 * low));
}

// A balanced Feistel network over the next even power of two, walked until it lands inside [0, n)
// (cycle walking, Black and Rogaway 2002): a bijection that needs no table.
uint64_t permuted(uint64_t index, uint64_t n, uint64_t seed, uint32_t epoch) {
  VP_CHECK(index < n, "sample {} of {}", index, n);
  if (n == 1) return 0;
  const int half_bits = (std::bit_width(n - 1) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t value = index;
  do {
    uint64_t left = value >> half_bits, right = value & mask;
    for (uint32_t round = 0; round < 6; ++round) {
      const uint64_t mixed = random_words(seed, Purpose::order, epoch * 8 + round, right)[0] & mask;
      const uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= n);
  return value;
}

}  // namespace voltapile
