// Private to train: a digest that any change of bits in one place changes, at memory speed.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace voltapile {

// Four lanes of 8 bytes. For what is left of the input a lane's step maps its value one to one, so
// a change in one word cannot be undone by later words.
class BitDigest {
 public:
  void add(const std::byte* data, size_t bytes) {
    size_t at = 0;
    for (; at + sizeof(Words) <= bytes; at += sizeof(Words)) {
      Words words;
      std::memcpy(words.data(), data + at, sizeof(words));
      for (size_t i = 0; i < words.size(); ++i) step(lanes_[i], words[i]);
    }
    for (; at < bytes; at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, data + at, bytes - at < sizeof(word) ? bytes - at : sizeof(word));
      step(lanes_[0], word);
    }
  }
  uint64_t value() const {
    uint64_t all = 0;
    for (uint64_t lane : lanes_) step(all, lane);
    return all;
  }

 private:
  using Words = std::array<uint64_t, 4>;
  static void step(uint64_t& lane, uint64_t word) {
    lane = std::rotl((lane ^ word) * 0x9e3779b97f4a7c15, 29);
  }
  Words lanes_ = {1, 2, 3, 4};
};

}  // namespace voltapile
