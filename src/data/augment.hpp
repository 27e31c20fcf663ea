// Random flips and shifts of one picture.
#pragma once
#include <cstdint>
#include <span>

namespace voltapile {

struct Augmentation {
  bool flip = false;            // left and right swapped
  int64_t down = 0, right = 0;  // pixels; negative: up, left
};

// What sample `sample` of the run gets: flips with probability one half where `flip` allows it,
// both shifts uniform in [-shift, shift]. A pure function of its arguments.
Augmentation draw_augmentation(uint64_t seed, uint64_t epoch, uint64_t sample, bool flip,
                               int64_t shift);

// from, to: (C, H, W) u8, distinct memory. The flip comes first; uncovered pixels become 0.
void apply(const Augmentation& augmentation, int64_t channels, int64_t height, int64_t width,
           std::span<const uint8_t> from, std::span<uint8_t> to);

}  // namespace voltapile
