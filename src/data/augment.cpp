#include "augment.hpp"

#include <algorithm>

#include "voltapile/base/error.hpp"
#include "voltapile/base/philox.hpp"

namespace voltapile {

Augmentation draw_augmentation(uint64_t seed, uint64_t epoch, uint64_t sample, bool flip,
                               int64_t shift) {
  const auto words = random_words(seed, Purpose::augment, static_cast<uint32_t>(epoch), sample);
  const auto offset = [shift](uint32_t word) {
    const auto choices = static_cast<uint64_t>(2 * shift + 1);
    return static_cast<int64_t>((word * choices) >> 32) - shift;
  };
  return {
      .flip = flip && (words[0] >> 31) != 0, .down = offset(words[1]), .right = offset(words[2])};
}

void apply(const Augmentation& augmentation, int64_t channels, int64_t height, int64_t width,
           std::span<const uint8_t> from, std::span<uint8_t> to) {
  const auto bytes = static_cast<size_t>(channels * height * width);
  VP_CHECK(from.size() == bytes && to.size() == bytes, "a picture has {} bytes, not {} and {}",
           bytes, from.size(), to.size());
  const auto [flip, down, right] = augmentation;
  // Columns [first, last) of the result show something of the picture.
  const int64_t first = std::clamp<int64_t>(right, 0, width);
  const int64_t last = std::clamp<int64_t>(width + right, 0, width);
  for (int64_t row = 0; row < channels * height; ++row) {
    const int64_t source_y = row % height - down;
    uint8_t* out = to.data() + row * width;
    if (source_y < 0 || source_y >= height || first >= last) {
      std::fill(out, out + width, uint8_t{0});
      continue;
    }
    const uint8_t* in = from.data() + (row - down) * width;
    std::fill(out, out + first, uint8_t{0});
    if (flip)
      std::reverse_copy(in + (width - (last - right)), in + (width - (first - right)), out + first);
    else std::copy(in + (first - right), in + (last - right), out + first);
    std::fill(out + last, out + width, uint8_t{0});
  }
}

}  // namespace voltapile
