#include "voltapile/base/bicubic.hpp"

#include <algorithm>
#include <cmath>

namespace voltapile {
namespace {

// R. Keys, "Cubic convolution interpolation for digital image processing", 1981, equation 15.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? a * (((x - 5) * x + 8) * x - 4) : 0;
}

}  // namespace

Taps bicubic_taps(double center, double stretch, int64_t inputs) {
  const double support = 2 * stretch;
  Taps taps{.first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0)};
  const int64_t end = std::min(static_cast<int64_t>(center + support + 0.5), inputs);
  double sum = 0;
  for (int64_t i = taps.first; i < end; ++i) {
    taps.weights.push_back(cubic((static_cast<double>(i) - center + 0.5) / stretch));
    sum += taps.weights.back();
  }
  for (double& weight : taps.weights) weight /= sum;
  return taps;
}

}  // namespace voltapile
