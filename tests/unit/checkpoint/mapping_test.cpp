// Where the elements of a flat piece go, against the definition of the splits one element at a
// time.
#include "mapping.hpp"

#include <gtest/gtest.h>

#include "sample.hpp"

namespace voltapile {
namespace {

// Scatters the piece's elements through the mappings; element e of the local tensor is e + 1.
std::vector<int64_t> through_mappings(const Parameter& p, const std::vector<Mapping>& mappings,
                                      int64_t begin) {
  std::vector<int64_t> whole(static_cast<size_t>(p.shape.elements()));
  for (const Mapping& mapping : mappings) {
    // The box in row-major order.
    for (int64_t n = 0; n < mapping.whole.count.elements(); ++n) {
      int64_t rest = n, flat = 0;
      std::vector<int64_t> at(static_cast<size_t>(p.shape.dims()));
      for (int dim = p.shape.dims() - 1; dim >= 0; --dim) {
        at[static_cast<size_t>(dim)] = mapping.whole.start[dim] + rest % mapping.whole.count[dim];
        rest /= mapping.whole.count[dim];
      }
      for (int dim = 0; dim < p.shape.dims(); ++dim) {
        EXPECT_LT(at[static_cast<size_t>(dim)], p.shape[dim]);
        flat = flat * p.shape[dim] + at[static_cast<size_t>(dim)];
      }
      const int64_t place = mapping.offset + n;
      EXPECT_EQ(whole.at(static_cast<size_t>(flat)), 0) << p.name << ": mapped twice";
      whole.at(static_cast<size_t>(flat)) = begin + place + 1;
    }
  }
  return whole;
}

std::vector<int64_t> through_definition(const Parameter& p, int tp, int tp_rank, int64_t begin,
                                        int64_t end) {
  std::vector<int64_t> whole(static_cast<size_t>(p.shape.elements()));
  for (int64_t e = begin; e < end; ++e) {
    const int64_t index = sample::whole_index(p, tp, tp_rank, e);
    if (index >= 0) whole.at(static_cast<size_t>(index)) = e + 1;
  }
  return whole;
}

void compare(const Parameter& p, int tp, int tp_rank, int64_t begin, int64_t end) {
  const auto mappings = map_piece(p, tp, tp_rank, begin, end);
  ASSERT_EQ(through_mappings(p, mappings, begin), through_definition(p, tp, tp_rank, begin, end))
      << p.name << " " << p.shape.text() << " tp " << tp << " rank " << tp_rank << " " << begin
      << ":" << end;
  // Each rectangle is cut in at most three, and each part of a row in at most 2 (dims - 1) - 1.
  const size_t rectangles = p.split == Split::qkv ? 3 : 1;
  const auto in_row = static_cast<size_t>(std::max(1, 2 * (p.shape.dims() - 1) - 1));
  EXPECT_LE(mappings.size(), rectangles + 2 * in_row);
}

TEST(Mapping, EveryRangeOfSmallTensorsGoesWhereTheSplitSaysItGoes) {
  const std::vector<std::pair<Shape, Split>> cases = {
      {{7}, Split::replicated}, {{1, 3, 4}, Split::replicated}, {{2, 2, 3, 2}, Split::replicated},
      {{6, 4}, Split::columns}, {{4, 6}, Split::rows},          {{6, 3}, Split::qkv},
      {{6}, Split::qkv},        {{3, 4}, Split::classes},       {{5}, Split::classes},
      {{1, 4}, Split::classes}};
  for (const auto& [shape, split] : cases) {
    Parameter p;
    p.name = "p";
    p.shape = shape;
    p.split = split;
    for (int tp = 1; tp <= 2; ++tp) {
      const int64_t elements = local_shape(p, tp).elements();
      for (int tp_rank = 0; tp_rank < tp; ++tp_rank) {
        for (int64_t begin = 0; begin <= elements; ++begin) {
          for (int64_t end = begin; end <= elements; ++end) compare(p, tp, tp_rank, begin, end);
        }
      }
    }
  }
}

TEST(Mapping, RandomRangesOfTheSampleModelGoWhereTheSplitSaysTheyGo) {
  const int draws = sample::full_run() ? 2000 : 40;
  std::mt19937_64 random(5);
  for (const Parameter& p : sample::model()) {
    for (int tp : {1, 2, 4}) {
      const auto elements = static_cast<uint64_t>(local_shape(p, tp).elements());
      for (int draw = 0; draw < draws; ++draw) {
        int64_t begin = static_cast<int64_t>(random() % (elements + 1));
        int64_t end = static_cast<int64_t>(random() % (elements + 1));
        if (begin > end) std::swap(begin, end);
        compare(p, tp, static_cast<int>(random() % static_cast<uint64_t>(tp)), begin, end);
      }
    }
  }
}

TEST(Mapping, PaddingAtTheEndIsNotPartOfTheExtent) {
  Parameter p;
  p.name = "head.weight";
  p.shape = {5, 3};
  p.split = Split::classes;
  // Two rows a rank on four ranks: rank 2 holds row 4 and a padded one, rank 3 only padded ones.
  EXPECT_EQ(mapped_extent(map_piece(p, 4, 1, 0, 6)), 6);
  EXPECT_EQ(mapped_extent(map_piece(p, 4, 2, 0, 6)), 3);
  EXPECT_EQ(mapped_extent(map_piece(p, 4, 2, 1, 5)), 2);
  EXPECT_EQ(mapped_extent(map_piece(p, 4, 2, 3, 6)), 0);
  EXPECT_EQ(mapped_extent(map_piece(p, 4, 3, 0, 6)), 0);
}

}  // namespace
}  // namespace voltapile
