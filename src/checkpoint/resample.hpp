// Pictures of vectors in another size.
#pragma once
#include <cstdint>
#include <vector>

namespace voltapile {

struct Grid {
  int64_t height = 0, width = 0;
  int64_t cells() const { return height * width; }
  bool operator==(const Grid&) const = default;
};

// `values` is (from.height, from.width, channels), the result (to.height, to.width, channels).
// Separable bicubic filter with a = -0.5 (Keys 1981), cell centres aligned, stretched by the ratio
// where the grid shrinks (antialiasing), cut and scaled to sum 1 at the borders: what PyTorch's
// interpolate(mode="bicubic", antialias=True) computes and timm's resample_abs_pos_embed calls.
// Sums are in f64.
std::vector<float> resample(const float* values, Grid from, Grid to, int64_t channels);

}  // namespace voltapile
