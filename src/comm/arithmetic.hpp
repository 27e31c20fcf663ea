// The arithmetic of reductions: one order and one rounding for every backend.
#pragma once
#include <cstdint>
#include <span>

#include "voltapile/base/dtype.hpp"
#include "voltapile/comm/communicator.hpp"

namespace voltapile::comm {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t length() const { return end - begin; }
};

// The consecutive part of `elements` that `rank` reduces in an all_reduce; the last ones may be
// shorter or empty.
Range piece_of(int64_t elements, int size, int rank);

// out[i] = inputs[0][i] op inputs[1][i] op ... from left to right. 16-bit types are combined in f32
// and rounded once; integers wrap around; max and min of a NaN is a NaN. `out` may be one of the
// inputs, and may not overlap one otherwise.
void reduce_in_order(std::span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                     DType dtype, Reduction op);

// memcpy that takes null pointers when there is nothing to copy, and equal ones.
void copy_bytes(void* out, const void* in, size_t bytes);

}  // namespace voltapile::comm
