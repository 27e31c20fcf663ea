// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): a counter in,
// four words out, no state. Values depend only on (seed, purpose, index), never on the mesh or the
// thread.
#pragma once
#include <array>
#include <cstdint>

namespace voltapile {

// What a number is drawn for; part of the key, so that two purposes never share numbers.
enum class Purpose : uint32_t {
  initial_weight = 1,
  drop_path = 2,
  order = 3,
  augment = 4,
  synthetic = 5,
  quantise = 6,
  dropout = 7
};

constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                         std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// Four words for (seed, purpose, item, index): `item` names a tensor, a layer or an epoch; `index`
// an element.
constexpr std::array<uint32_t, 4> random_words(uint64_t seed, Purpose purpose, uint32_t item,
                                               uint64_t index) {
  return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), item,
                 static_cast<uint32_t>(purpose)},
                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// Uniform in [0, 1), 24 bits: exact in float.
constexpr float uniform01(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Standard normal truncated to [-2, 2] in units of sigma, by inverting the normal distribution (no
// rejection, so that element i needs exactly draw i).
double truncated_normal(uint64_t seed, uint32_t item, uint64_t index);

// A bijection of [0, n) keyed by (seed, epoch): the visiting order of an epoch without storing a
// permutation.
uint64_t permuted(uint64_t index, uint64_t n, uint64_t seed, uint32_t epoch);

}  // namespace voltapile
