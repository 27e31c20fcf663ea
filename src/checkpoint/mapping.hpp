// Where the elements of a rank's flat piece lie in the whole tensor. Pure arithmetic.
#pragma once
#include <vector>

#include "voltapile/architecture/architecture.hpp"
#include "voltapile/h5/h5.hpp"

namespace voltapile {

// The elements of the piece from `offset` on are the box of the whole tensor in row-major order.
struct Mapping {
  int64_t offset = 0;
  h5::Box whole;
  int64_t end() const { return offset + whole.count.elements(); }
};

// The piece holds elements [begin, end) of the flattened local tensor of `parameter` on one tensor
// rank. The boxes are disjoint and leave padding out. A range cuts a rectangle into at most three
// (part of a row, whole rows, part of a row), and part of a row into at most 2 * (dims - 1) - 1
// boxes.
std::vector<Mapping> map_piece(const Parameter& parameter, int tp, int tp_rank, int64_t begin,
                               int64_t end);

// Elements of the piece up to the last one that is not padding.
int64_t mapped_extent(const std::vector<Mapping>& mappings);

}  // namespace voltapile
