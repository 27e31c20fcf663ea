// Made-up pictures that can be learned: for tests, and for measuring speed without a data set.
#pragma once
#include <cstdint>
#include <memory>

#include "voltapile/data/data.hpp"

namespace voltapile {

struct SyntheticOptions {
  uint64_t seed = 0;
  Part part = Part::train;  // both parts show the same classes, in different pictures
  int64_t count = 0, channels = 0, height = 0, width = 0, classes = 0;
};

// Picture i is a pure function of (seed, part, i): the pattern of its class, a grid of kGrid x
// kGrid dark and bright cells in each channel, under noise of about the same strength.
std::shared_ptr<const Source> make_synthetic(const SyntheticOptions& options);

}  // namespace voltapile
