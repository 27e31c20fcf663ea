#include "mapping.hpp"

#include <algorithm>

namespace voltapile {
namespace {

// Calls emit(offset in the range, box) for the boxes that elements [begin, end) of a row-major
// tensor of `shape` (dims `dim` and up) consist of, in order. `box` has the dims before filled in.
template <class Emit>
void split_range(const Shape& shape, int dim, int64_t begin, int64_t end, int64_t offset,
                 h5::Box box, const Emit& emit) {
  if (begin == end) return;
  if (dim == shape.dims()) {
    emit(offset, box);
    return;
  }
  int64_t inner = 1;
  for (int d = dim + 1; d < shape.dims(); ++d) inner *= shape[d];
  const auto part_of_one = [&](int64_t index, int64_t from, int64_t to, int64_t at) {
    h5::Box one = box;
    one.start.append(index);
    one.count.append(1);
    split_range(shape, dim + 1, from, to, at, one, emit);
  };
  int64_t first = begin / inner;
  const int64_t last = end / inner;
  if (begin % inner != 0) {
    const int64_t stop = first == last ? end % inner : inner;
    part_of_one(first, begin % inner, stop, offset);
    offset += stop - begin % inner;
    if (first == last) return;
    ++first;
  }
  if (first < last) {
    h5::Box full = box;
    full.start.append(first);
    full.count.append(last - first);
    for (int d = dim + 1; d < shape.dims(); ++d) {
      full.start.append(0);
      full.count.append(shape[d]);
    }
    emit(offset, full);
    offset += (last - first) * inner;
  }
  if (end % inner != 0) part_of_one(last, 0, end % inner, offset);
}

// One block of the local matrix, (row, column) to (row_end, column_end), all inside the range.
struct Block {
  int64_t row, column, row_end, column_end;
};

void map_block(const Block& block, const Rectangle& r, const Shape& whole, int64_t local_columns,
               int64_t begin, std::vector<Mapping>& out) {
  const int64_t row = std::max(block.row, r.local_row);
  const int64_t column = std::max(block.column, r.local_column);
  const int64_t rows = std::min(block.row_end, r.local_row + r.rows) - row;
  const int64_t columns = std::min(block.column_end, r.local_column + r.columns) - column;
  if (rows <= 0 || columns <= 0) return;

  // So that the block is one run of the piece; no split divides more than one dim.
  VP_CHECK(rows == 1 || columns == local_columns, "a block of {} x {} in rows of {}", rows, columns,
           local_columns);

  const int64_t first = row * local_columns + column - begin;
  h5::Box in_rows;
  in_rows.start.append(r.whole_row + row - r.local_row);
  in_rows.count.append(rows);
  const int64_t from = r.whole_column + column - r.local_column;
  split_range(whole, 1, from, from + columns, first, in_rows,
              [&](int64_t offset, const h5::Box& box) {
                out.push_back({offset, box});
              });
}

}  // namespace

std::vector<Mapping> map_piece(const Parameter& parameter, int tp, int tp_rank, int64_t begin,
                               int64_t end) {
  const Shape local = local_shape(parameter, tp);
  VP_CHECK(parameter.shape.dims() >= 1, "{} is a scalar", parameter.name);
  VP_CHECK(0 <= begin && begin <= end && end <= local.elements(), "{}: piece {}:{} of {}",
           parameter.name, begin, end, local.text());
  std::vector<Mapping> out;
  if (begin == end) return out;
  const int64_t columns = local.elements() / local[0];
  // At most three blocks: the rest of a row, whole rows, the start of a row.
  std::vector<Block> blocks;
  int64_t row = begin / columns;
  const int64_t last = end / columns;
  if (begin % columns != 0) {
    blocks.push_back({row, begin % columns, row + 1, row == last ? end % columns : columns});
    ++row;
  }
  if (row < last) blocks.push_back({row, 0, last, columns});
  if (row <= last && end % columns != 0) blocks.push_back({last, 0, last + 1, end % columns});

  const std::vector<Rectangle> rectangles = placement(parameter, tp, tp_rank);
  for (const Block& block : blocks) {
    for (const Rectangle& rectangle : rectangles) {
      map_block(block, rectangle, parameter.shape, columns, begin, out);
    }
  }
  return out;
}

int64_t mapped_extent(const std::vector<Mapping>& mappings) {
  int64_t extent = 0;
  for (const Mapping& mapping : mappings) extent = std::max(extent, mapping.end());
  return extent;
}

}  // namespace voltapile
