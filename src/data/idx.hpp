// IDX, the format of MNIST and its successors: a big-endian magic 0x000008DD (08 = unsigned bytes,
// DD = number of dims), DD extents of 32 bits, then the bytes. Plain or gzipped.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "voltapile/data/data.hpp"

namespace voltapile {

// What the deck says the files must hold, and which keys say it.
struct IdxExpectation {
  std::string pictures_key, pictures_path;  // 0x00000803 (N, H, W) or 0x00000804 (N, C, H, W)
  std::string labels_key, labels_path;      // 0x00000801 (N); no path: all labels are 0
  int64_t channels = 0, height = 0, width = 0, classes = 0;
};

// Reads the files whole and checks all of them; throws Error(bad_data).
std::shared_ptr<const Source> open_idx(const IdxExpectation& expected);

}  // namespace voltapile
