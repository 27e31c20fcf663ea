#include "resample.hpp"

#include <algorithm>

#include "voltapile/base/bicubic.hpp"

namespace voltapile {
namespace {

std::vector<Taps> taps(int64_t from, int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  std::vector<Taps> all;
  for (int64_t i = 0; i < to; ++i)
    all.push_back(bicubic_taps(scale * (static_cast<double>(i) + 0.5), std::max(scale, 1.0), from));
  return all;
}

}  // namespace

std::vector<float> resample(const float* values, Grid from, Grid to, int64_t channels) {
  const std::vector<Taps> across = taps(from.width, to.width), down = taps(from.height, to.height);
  const auto size = static_cast<size_t>(channels);
  std::vector<double> wide(static_cast<size_t>(from.height * to.width) * size, 0.0);
  for (int64_t y = 0; y < from.height; ++y) {
    for (int64_t x = 0; x < to.width; ++x) {
      double* const out = wide.data() + static_cast<size_t>(y * to.width + x) * size;
      const Taps& tap = across[static_cast<size_t>(x)];
      for (size_t j = 0; j < tap.weights.size(); ++j) {
        const float* const in =
            values + (y * from.width + tap.first + static_cast<int64_t>(j)) * channels;
        for (size_t c = 0; c < size; ++c) out[c] += tap.weights[j] * static_cast<double>(in[c]);
      }
    }
  }
  std::vector<float> result(static_cast<size_t>(to.cells()) * size);
  std::vector<double> sums(size);
  for (int64_t y = 0; y < to.height; ++y) {
    const Taps& tap = down[static_cast<size_t>(y)];
    for (int64_t x = 0; x < to.width; ++x) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (size_t j = 0; j < tap.weights.size(); ++j) {
        const int64_t row = tap.first + static_cast<int64_t>(j);
        const double* const in = wide.data() + static_cast<size_t>(row * to.width + x) * size;
        for (size_t c = 0; c < size; ++c) sums[c] += tap.weights[j] * in[c];
      }
      std::transform(sums.begin(), sums.end(), result.begin() + (y * to.width + x) * channels,
                     [](double sum) { return static_cast<float>(sum); });
    }
  }
  return result;
}

}  // namespace voltapile
