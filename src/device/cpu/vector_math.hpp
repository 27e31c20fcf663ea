// Branch-free float functions that the compiler vectorises inside a loop; double ones from <cmath>.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace voltapile::cpu {

// e^x within 1 ulp or so; 0 below -87.3, where results would be subnormal; saturates at e^88.37.
inline float exp_of(float x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = x > 88.37f ? 88.37f : x;
  const float shifted = clamped * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  // Minimax of (e^r - 1 - r) / r^2 on |r| <= ln(2)/2, relative error 3e-9.
  float p = 0.0013814520f;
  p = p * r + 0.0083687473f;
  p = p * r + 0.041668393f;
  p = p * r + 0.16666520f;
  p = p * r + 0.49999994f;
  p = p * r * r + r + 1.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u;
  const float y = p * std::bit_cast<float>(exponent);
  return x < -87.3f ? 0.0f : y;
}
inline double exp_of(double x) { return std::exp(x); }

// The normal distribution's density and cumulative function, which give GELU and its derivative.
template <class A>
struct Normal {
  A density, cumulative;
};
inline Normal<float> normal_at(float x) {
  // cumulative(-|x|) = density(x) * sqrt(pi/2) * erfcx(|x|/sqrt(2)); erfcx(z)/t is a polynomial in
  // u = 2t - 1, t = 1/(1 + 0.36 z), fitted for least relative error (3.5e-8): both tails keep their
  // relative accuracy.
  const float z = std::fabs(x) * 0.70710678f;
  const float t = 1.0f / (1.0f + 0.36f * z);
  const float u = 2.0f * t - 1.0f;
  float p = 7.356314e-05f;
  p = p * u + 0.00010746623f;
  p = p * u - 0.00066790264f;
  p = p * u - 0.0019527808f;
  p = p * u + 0.0023873794f;
  p = p * u + 0.027280934f;
  p = p * u + 0.089899383f;
  p = p * u + 0.19227731f;
  p = p * u + 0.30675346f;
  p = p * u + 0.38384122f;
  const float e = exp_of(-z * z);
  const float tail = 0.5f * e * p * t;
  return {0.39894228f * e, x < 0 ? tail : 1.0f - tail};
}
inline Normal<double> normal_at(double x) {
  return {0.39894228040143267794 * std::exp(-0.5 * x * x),
          0.5 * std::erfc(-x * 0.70710678118654752440)};
}

template <class A>
inline A gelu_of(A x) {
  return x * normal_at(x).cumulative;
}
template <class A>
inline A gelu_slope_of(A x) {
  const Normal<A> normal = normal_at(x);
  return normal.cumulative + x * normal.density;
}

}  // namespace voltapile::cpu
