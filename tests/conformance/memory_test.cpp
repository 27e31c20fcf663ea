// Filling, casting, adding.
#include "rig.hpp"

namespace voltapile::conformance {
namespace {

class Memory : public Conformance {};

TEST_P(Memory, fill_writes_every_element) {
  for (const int64_t n : {1, 17, 40001}) {
    const Tensor t = poisoned(type(), {n});
    kernels().fill(t, -2.5, stream());
    expect_equal(t, Values(static_cast<size_t>(n), -2.5), "filled");
  }
}

TEST_P(Memory, fill_sets_counters_too) {
  const Tensor t = poisoned(DType::i32, {1003});
  kernels().fill(t, -7, stream());
  expect_equal(t, Values(1003, -7.0), "filled");
}

// Pieces of flat buffers start anywhere; their neighbours are somebody else's.
TEST_P(Memory, pieces_at_any_offset_are_worked_on_alone) {
  const int64_t n = 5000;
  for (const auto& [begin, end] : {std::array<int64_t, 2>{0, 4999},
                                   {1, 2},
                                   {1, 4098},
                                   {2, 5},
                                   {3, 4000},
                                   {5, 4093},
                                   {7, 5000},
                                   {8, 8}}) {
    const Tensor a = random(type(), {n}), b = random(type(), {n}), sum = random(type(), {n}),
                 filled = random(type(), {n}), wide = random(DType::f32, {n}),
                 narrow = random(type(), {n});
    const auto piece = [&, from = begin, to = end](const Tensor& t) {
      return t.view.slice_flat(from, to);
    };
    kernels().add(piece(a), piece(b), piece(sum), stream());
    kernels().fill(piece(filled), 0.5, stream());
    // Both of one offset, and each of another.
    kernels().cast(piece(wide), piece(narrow), stream());
    Values added = sum.values, half = filled.values, cast = narrow.values;
    const Values rounded = given(type(), {n}, wide.values).values;
    for (int64_t i = begin; i < end; ++i) {
      added[i] = a[i] + b[i];
      half[i] = 0.5;
      cast[i] = rounded[i];
    }
    expect_equal(sum, given(type(), {n}, added).values, "sum");
    expect_equal(filled, half, "filled");
    expect_equal(narrow, cast, "cast");
    if (begin == 0) continue;
    kernels().cast(wide.view.slice_flat(0, end - begin), piece(narrow), stream());
    for (int64_t i = begin; i < end; ++i) cast[i] = rounded[i - begin];
    expect_equal(narrow, cast, "cast to another offset");
  }
}

TEST_P(Memory, cast_rounds_to_nearest_even) {
  for (const DType to : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    const Tensor from = random(type(), {20011}, 300), out = poisoned(to, {20011});
    kernels().cast(from, out, stream());
    expect_equal(out, given(to, {20011}, from.values).values, "cast");
  }
}

TEST_P(Memory, cast_keeps_infinities_and_not_a_number) {
  const Tensor from =
      given(type(), {9}, {INFINITY, -INFINITY, NAN, 1, 2, 3, INFINITY, -INFINITY, NAN});
  for (const DType to : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    const Tensor out = poisoned(to, {9});
    kernels().fill(out, 0, stream());
    kernels().cast(from, out, stream());
    const Values got = read(out);
    for (const size_t at : {0u, 6u}) {
      EXPECT_EQ(got[at], INFINITY);
      EXPECT_EQ(got[at + 1], -INFINITY);
      EXPECT_TRUE(std::isnan(got[at + 2]));
    }
  }
}

TEST_P(Memory, add_also_in_place) {
  for (const int64_t n : {1, 1023, 40001}) {
    const Tensor a = random(type(), {n}), b = random(type(), {n}), out = poisoned(type(), {n});
    kernels().add(a, b, out, stream());
    Values wanted = a.values;
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += b.values[i];
    expect_near(out, wanted, "a + b");
    kernels().add(a, b, a, stream());
    expect_equal(a, read(out), "in place");
  }
}

VOLTAPILE_CONFORMANCE(Memory);

}  // namespace
}  // namespace voltapile::conformance
