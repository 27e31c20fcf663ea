#include <bit>
#include <cmath>
#include <limits>

#include "voltapile/base/philox.hpp"
#include "voltapile/device/shapes.hpp"

#include "kernels.hpp"
#include "parallel.hpp"

namespace voltapile::cpu {
namespace {

constexpr int64_t kGrain = 64;  // blocks
constexpr float kLeast = 0x1p-119f;
constexpr uint32_t kInfinity = 0x7f800000u;

// In double, then rounded: a product alone, which the compiler must not fuse with what follows.
float product(float a, float b) { return static_cast<float>(static_cast<double>(a) * b); }

// Writes the codes of n <= kQuantiseBlock numbers; returns their scale. `draw(i)` gives the
// words for elements i to i + 7.
template <class Draw>
float quantise_block(const float* x, int64_t n, Draw&& draw, int8_t* codes) {
  uint32_t most = 0;  // bits of magnitudes have the magnitudes' order, NaN above all
  for (int64_t i = 0; i < n; ++i)
    most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  const auto greatest = std::bit_cast<float>(most);
  if (most >= kInfinity || greatest < kLeast) {
    std::fill_n(codes, n, int8_t{0});
    return most >= kInfinity ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  }
  float inverse = 127.0f / greatest;
  if (static_cast<double>(inverse) * greatest > 127) inverse = std::nextafter(inverse, 0.0f);
  if constexpr (std::is_null_pointer_v<std::decay_t<Draw>>) {
    for (int64_t i = 0; i < n; ++i)
      codes[i] = static_cast<int8_t>(std::nearbyint(product(x[i], inverse)));
  } else {
    for (int64_t i = 0; i < n; i += 8) {
      const std::array<uint32_t, 4> words = draw(i);
      for (int64_t j = i; j < std::min(i + 8, n); ++j) {
        const float wanted = product(x[j], inverse), below = std::floor(wanted);
        const uint32_t half = words[static_cast<size_t>((j - i) / 2)] >> 16 * (j % 2) & 0xffffu;
        const double fraction = static_cast<double>(wanted) - below;  // exact, as in f32 it is not
        const float up = half + 0.5 < fraction * 65536 ? 1 : 0;
        codes[j] = static_cast<int8_t>(below + up);
      }
    }
  }
  return greatest / 127.0f;
}

template <class T>
void quantise_all(ThreadPool& pool, const T* x, const Rounding& rounding, int8_t* codes,
                  float* scales, int64_t n) {
  const int64_t step = rounding.state ? rounding.state->inputs.step : 0;
  const auto first = static_cast<uint64_t>((step << 40) + rounding.first_index);
  for_pieces(pool, pieces(n, kQuantiseBlock), kGrain, [&](int64_t begin, int64_t end) {
    float numbers[kQuantiseBlock];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t at = b * kQuantiseBlock, count = std::min(kQuantiseBlock, n - at);
      convert_run(x + at, count, numbers);
      scales[b] = rounding.seed
                      ? quantise_block(
                            numbers, count,
                            [&](int64_t i) {
                              return random_words(*rounding.seed, Purpose::quantise, rounding.item,
                                                  (first + static_cast<uint64_t>(at + i)) / 8);
                            },
                            codes + at)
                      : quantise_block(numbers, count, nullptr, codes + at);
    }
  });
}

template <class T>
void dequantise_all(ThreadPool& pool, const int8_t* codes, const float* scales, T* y, int64_t n) {
  for_pieces(pool, pieces(n, kQuantiseBlock), kGrain, [=](int64_t begin, int64_t end) {
    float numbers[kQuantiseBlock];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t at = b * kQuantiseBlock, count = std::min(kQuantiseBlock, n - at);
      for (int64_t i = 0; i < count; ++i)
        numbers[i] = static_cast<float>(codes[at + i]) * scales[b];
      convert_run(numbers, count, y + at);
    }
  });
}

int8_t* signed_bytes(const TensorView& codes) {
  return reinterpret_cast<int8_t*>(codes.as<uint8_t>());
}

}  // namespace

void CpuKernels::quantise_8bit(TensorView x, const Rounding& rounding, TensorView codes,
                               TensorView scales, Stream& stream) {
  shapes::quantise("quantise_8bit", x, codes, scales);
  shapes::rounding(rounding);
  launch(x.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    quantise_all(pool_, x.as<T>(), rounding, signed_bytes(codes), scales.as<float>(), x.elements());
  });
}

void CpuKernels::dequantise_8bit(TensorView codes, TensorView scales, TensorView y,
                                 Stream& stream) {
  shapes::quantise("dequantise_8bit", y, codes, scales);
  launch(y.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    dequantise_all(pool_, signed_bytes(codes), scales.as<float>(), y.as<T>(), y.elements());
  });
}

}  // namespace voltapile::cpu
