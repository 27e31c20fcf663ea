#include "voltapile/base/philox.hpp"

#include <bit>
#include <cmath>

#include "voltapile/base/error.hpp"

namespace voltapile {

namespace {

// Horner's scheme, the highest power first.
template <size_t n>
double polynomial(const std::array<double, n>& coefficients, double x) {
  double sum = 0;
  for (const double c : coefficients) sum = sum * x + c;
  return sum;
}

// Inverse of the normal distribution by rational functions, with an error of some 1e-16 of |x|, for
// p from 2e-11 up to 1 less that (Wichura, "Algorithm AS 241", Applied Statistics 37, 1988:
// PPND16).
double inverse_normal(double p) {
  constexpr std::array<double, 8> kNear{2.5090809287301226727e3, 3.3430575583588128105e4,
                                        6.7265770927008700853e4, 4.5921953931549871457e4,
                                        1.3731693765509461125e4, 1.9715909503065514427e3,
                                        1.3314166789178437745e2, 3.3871328727963666080e0};
  constexpr std::array<double, 8> kUnderNear{5.2264952788528545610e3, 2.8729085735721942674e4,
                                             3.9307895800092710610e4, 2.1213794301586595867e4,
                                             5.3941960214247511077e3, 6.8718700749205790830e2,
                                             4.2313330701600911252e1, 1};
  constexpr std::array<double, 8> kFar{7.74545014278341407640e-4, 2.27238449892691845833e-2,
                                       2.41780725177450611770e-1, 1.27045825245236838258e0,
                                       3.64784832476320460504e0,  5.76949722146069140550e0,
                                       4.63033784615654529590e0,  1.42343711074968357734e0};
  constexpr std::array<double, 8> kUnderFar{1.05075007164441684324e-9, 5.47593808499534494600e-4,
                                            1.51986665636164571966e-2, 1.48103976427480074590e-1,
                                            6.89767334985100004550e-1, 1.67638483018380384940e0,
                                            2.05319162663775882187e0,  1};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(kNear, r) / polynomial(kUnderNear, r);
  }
  const double r = std::sqrt(-std::log(q < 0 ? p : 1 - p)) - 1.6;
  return std::copysign(polynomial(kFar, r) / polynomial(kUnderFar, r), q);
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
