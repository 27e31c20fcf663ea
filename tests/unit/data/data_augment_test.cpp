#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "augment.hpp"

namespace voltapile {
namespace {

using Bytes = std::vector<uint8_t>;

// What the contract says, pixel by pixel.
Bytes expected(const Augmentation& a, int64_t channels, int64_t height, int64_t width,
               const Bytes& from) {
  Bytes to(from.size(), 0);
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x) {
        const int64_t source_y = y - a.down, shifted_x = x - a.right;
        if (source_y < 0 || source_y >= height || shifted_x < 0 || shifted_x >= width) continue;
        const int64_t source_x = a.flip ? width - 1 - shifted_x : shifted_x;
        to[(c * height + y) * width + x] = from[(c * height + source_y) * width + source_x];
      }
  return to;
}

TEST(Augment, FlipsAndShiftsWithEdgesFilledWithZero) {
  constexpr int64_t channels = 2, height = 3, width = 5;
  Bytes from(channels * height * width);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i + 1);
  for (const bool flip : {false, true})
    for (int64_t down = -4; down <= 4; ++down)
      for (int64_t right = -6; right <= 6; ++right) {
        const Augmentation a{flip, down, right};
        Bytes to(from.size(), 255);
        apply(a, channels, height, width, from, to);
        EXPECT_EQ(to, expected(a, channels, height, width, from))
            << "flip " << flip << ", down " << down << ", right " << right;
      }
}

TEST(Augment, DrawsEveryShiftEquallyAndFlipsHalf) {
  constexpr int kDraws = 7000;
  std::vector<int> down(7), right(7);
  int flips = 0;
  for (uint64_t k = 0; k < kDraws; ++k) {
    const Augmentation a = draw_augmentation(1, 0, k, true, 3);
    flips += a.flip;
    ++down.at(static_cast<size_t>(a.down + 3));
    ++right.at(static_cast<size_t>(a.right + 3));
  }
  EXPECT_NEAR(flips, kDraws / 2, 200);  // about five sigma
  for (int count : down) EXPECT_NEAR(count, kDraws / 7, 150);
  for (int count : right) EXPECT_NEAR(count, kDraws / 7, 150);
}

TEST(Augment, DependsOnSeedEpochAndSample) {
  const auto key = [](uint64_t seed, uint64_t epoch, uint64_t sample) {
    const Augmentation a = draw_augmentation(seed, epoch, sample, true, 1000000);
    return std::tuple(a.down, a.right);
  };
  const std::set<std::tuple<int64_t, int64_t>> drawn = {key(1, 0, 0), key(2, 0, 0), key(1, 1, 0),
                                                        key(1, 0, 1)};
  EXPECT_EQ(drawn.size(), 4u);
  EXPECT_EQ(key(1, 2, 3), key(1, 2, 3));
}

TEST(Augment, DoesNothingWhenNothingIsAllowed) {
  for (uint64_t k = 0; k < 100; ++k) {
    const Augmentation a = draw_augmentation(5, 1, k, false, 0);
    EXPECT_FALSE(a.flip);
    EXPECT_EQ(a.down, 0);
    EXPECT_EQ(a.right, 0);
  }
}

}  // namespace
}  // namespace voltapile
