// A source whose pictures show their own index, and a loader with the memory it fills.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "voltapile/data/data.hpp"

namespace voltapile {

using Bytes = std::vector<uint8_t>;

// Picture i (1, 2, 4): i in its first eight bytes, so never all zero at i > 0. Label: i % 7.
class NumberedSource final : public Source {
 public:
  explicit NumberedSource(int64_t size, std::function<void(int64_t)> on_read = {})
      : size_(size), on_read_(std::move(on_read)) {}
  int64_t size() const override { return size_; }
  std::string describe() const override { return "numbers"; }
  void read(int64_t index, std::span<uint8_t> picture, int32_t& label) const override {
    if (on_read_) on_read_(index);
    if (!picture.empty()) std::memcpy(picture.data(), &index, sizeof index);
    label = static_cast<int32_t>(index % 7);
  }

 private:
  int64_t size_;
  std::function<void(int64_t)> on_read_;
};

constexpr int64_t kPictureBytes = 8;

inline LoaderOptions numbered_options(int64_t samples_per_step) {
  LoaderOptions options;
  options.seed = 11;
  options.channels = 1;
  options.height = 2;
  options.width = 4;
  options.samples_per_step = options.rank_samples = samples_per_step;
  return options;
}

class Memory {
 public:
  Memory(const LoaderOptions& options, size_t slots, bool pictures = true, bool labels = true)
      : pictures_(slots), labels_(slots) {
    const auto samples = static_cast<size_t>(options.rank_samples);
    const auto picture_bytes =
        static_cast<size_t>(options.channels * options.height * options.width);
    for (size_t slot = 0; slot < slots; ++slot) {
      if (pictures) pictures_[slot].assign(samples * picture_bytes, 0xee);
      if (labels) labels_[slot].assign(samples, -1);
    }
  }
  std::vector<BatchMemory> ring() {
    std::vector<BatchMemory> ring;
    for (size_t slot = 0; slot < pictures_.size(); ++slot)
      ring.push_back({pictures_[slot], labels_[slot]});
    return ring;
  }

 private:
  std::vector<Bytes> pictures_;
  std::vector<std::vector<int32_t>> labels_;
};

}  // namespace voltapile
