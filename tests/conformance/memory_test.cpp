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
