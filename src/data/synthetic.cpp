#include "synthetic.hpp"

#include <algorithm>
#include <array>

#include "voltapile/base/error.hpp"
#include "voltapile/base/philox.hpp"
#include "voltapile/base/units.hpp"

namespace voltapile {
namespace {

// Cells wider than a usual patch, so that a linear patch embedding sees the signal.
constexpr int64_t kGrid = 4;
// A pixel is kBase + cell (0 or kContrast) + noise (0..127): always within 0..255.
constexpr uint32_t kBase = 32, kContrast = 80;

// The 64-bit index of a draw: its top bits tell class patterns, training and test pictures apart.
constexpr uint64_t kPattern = uint64_t{1} << 63, kTest = uint64_t{1} << 62;
constexpr uint32_t kLabelItem = ~uint32_t{0};

class SyntheticSource final : public Source {
 public:
  explicit SyntheticSource(const SyntheticOptions& options) : options_(options) {}

  int64_t size() const override { return options_.count; }
  std::string describe() const override {
    return format("{} synthetic pictures of {} x {} x {}", show_grouped(options_.count),
                  options_.channels, options_.height, options_.width);
  }

  void read(int64_t index, std::span<uint8_t> picture, int32_t& label) const override {
    VP_CHECK(0 <= index && index < size(), "picture {} of {}", index, size());
    const uint64_t draw =
        static_cast<uint64_t>(index) | (options_.part == Part::test ? kTest : uint64_t{0});
    const uint32_t word = draw_words(kLabelItem, draw)[0];
    // The upper half of a product maps 32 bits evenly onto [0, classes).
    label = static_cast<int32_t>((uint64_t{word} * static_cast<uint64_t>(options_.classes)) >> 32);
    if (picture.empty()) return;
    const int64_t plane = options_.height * options_.width;
    VP_CHECK(static_cast<int64_t>(picture.size()) == options_.channels * plane,
             "a picture has {} bytes, not {}", options_.channels * plane, picture.size());
    for (int64_t channel = 0; channel < options_.channels; ++channel)
      add_pattern(channel, label, picture.subspan(static_cast<size_t>(channel * plane)));
    add_noise(draw, picture);
  }

 private:
  std::array<uint32_t, 4> draw_words(uint32_t item, uint64_t draw) const {
    return random_words(options_.seed, Purpose::synthetic, item, draw);
  }

  void add_pattern(int64_t channel, int32_t label, std::span<uint8_t> plane) const {
    static_assert(kGrid * kGrid <= 32, "one word holds the cells of a channel");
    const uint32_t cells =
        draw_words(static_cast<uint32_t>(channel), kPattern | static_cast<uint32_t>(label))[0];
    size_t at = 0;
    for (int64_t y = 0; y < options_.height; ++y) {
      const int64_t row = y * kGrid / options_.height * kGrid;
      for (int64_t x = 0; x < options_.width; ++x) {
        const int64_t cell = row + x * kGrid / options_.width;
        plane[at++] = static_cast<uint8_t>(kBase + (cells >> cell & 1) * kContrast);
      }
    }
  }

  void add_noise(uint64_t draw, std::span<uint8_t> picture) const {
    constexpr size_t kBytesPerDraw = 16;
    for (size_t begin = 0; begin < picture.size(); begin += kBytesPerDraw) {
      const auto words = draw_words(static_cast<uint32_t>(begin / kBytesPerDraw), draw);
      const size_t end = std::min(begin + kBytesPerDraw, picture.size());
      for (size_t at = begin; at < end; ++at) {
        const size_t byte = at - begin;
        const uint32_t noise = words[byte / 4] >> (byte % 4 * 8) & 0x7f;
        picture[at] = static_cast<uint8_t>(picture[at] + noise);
      }
    }
  }

  SyntheticOptions options_;
};

}  // namespace

std::shared_ptr<const Source> make_synthetic(const SyntheticOptions& options) {
  VP_CHECK(options.count > 0 && options.classes > 0 &&
               options.channels * options.height * options.width > 0,
           "synthetic data need at least one picture, class and pixel");
  return std::make_shared<SyntheticSource>(options);
}

}  // namespace voltapile
