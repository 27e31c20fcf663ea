// 8-bit storage: codes are the same on every backend, bit for bit.
#include <limits>

#include "rig.hpp"

namespace voltapile::conformance {
namespace {

class Quantise : public Conformance {
 protected:
  struct Stored {
    Tensor codes, scales;
  };
  static int64_t blocks(int64_t n) { return (n + kQuantiseBlock - 1) / kQuantiseBlock; }
  Stored store(const TensorView& x, const Rounding& rounding) {
    const int64_t n = x.elements();
    Stored s{poisoned(DType::u8, {n}), poisoned(DType::f32, {blocks(n)})};
    kernels().quantise_8bit(x, rounding, s.codes, s.scales, stream());
    return s;
  }
  Values restore(const Stored& s, DType t) {
    const Tensor y = poisoned(t, s.codes.view.shape);
    kernels().dequantise_8bit(s.codes, s.scales, y, stream());
    return read(y);
  }
  // The rule of kernels.hpp, element by element.
  static void rule(const Values& x, const Rounding& rounding, int64_t step, Values& codes,
                   Values& scales) {
    const auto n = static_cast<int64_t>(x.size());
    codes.assign(x.size(), 0.0);
    scales.assign(static_cast<size_t>(blocks(n)), 0.0);
    for (int64_t b = 0; b < blocks(n); ++b) {
      const int64_t begin = b * kQuantiseBlock, end = std::min(begin + kQuantiseBlock, n);
      float most = 0;
      for (int64_t i = begin; i < end; ++i) {
        const auto value = static_cast<float>(x[i]);
        if (!std::isfinite(value)) most = NAN;
        else if (std::fabs(value) > most) most = std::fabs(value);
      }
      if (std::isnan(most)) scales[b] = NAN;
      if (!(most >= 0x1p-119f)) continue;
      scales[b] = most / 127.0f;
      float inverse = 127.0f / most;
      if (static_cast<double>(inverse) > 127 / static_cast<double>(most))
        inverse = std::nextafter(inverse, 0.0f);
      for (int64_t i = begin; i < end; ++i) {
        const auto wanted = static_cast<float>(static_cast<double>(static_cast<float>(x[i])) *
                                               static_cast<double>(inverse));
        float code = std::nearbyint(wanted);
        if (rounding.seed) {
          const auto e = static_cast<uint64_t>((step << 40) + rounding.first_index + i);
          const auto words = random_words(*rounding.seed, Purpose::quantise, rounding.item, e / 8);
          code = std::floor(wanted);
          const double half = words[e / 2 % 4] >> 16 * (e % 2) & 0xffffu;
          if ((half + 0.5) / 65536 < static_cast<double>(wanted) - code) code += 1;
        }
        codes[i] = code;
      }
    }
  }
  void expect_rule(const Tensor& x, const Rounding& rounding, int64_t step) {
    const Stored got = store(x, rounding);
    Values codes, scales;
    rule(x.values, rounding, step, codes, scales);
    for (double& code : codes) code = code < 0 ? code + 256 : code;  // read back as u8
    expect_equal(got.codes, codes, "codes");
    expect_equal(got.scales, scales, "scales");
  }
};

const int64_t kSizes[] = {1, 7, 255, 256, 257, 512, 1003, 40000};

TEST_P(Quantise, codes_are_those_of_the_rule_to_the_bit) {
  StepState state;
  state.inputs.step = 12345;
  const StepState* placed = place(state);
  for (const int64_t n : kSizes)
    for (const double size : {1.0, 3e-5, 6e4}) {
      const Tensor x = random(type(), {n}, size);
      expect_rule(x, {}, 0);
      expect_rule(x, {.seed = 5}, 0);
      expect_rule(
          x, {.seed = 1ull << 40, .item = 9, .state = placed, .first_index = 3 * kQuantiseBlock},
          12345);
    }
}

// Of nearly every greatest magnitude, the quotient rounded to the nearest is too large for some.
TEST_P(Quantise, no_code_passes_127) {
  Values values(4096 * kQuantiseBlock, 0.0);
  for (int64_t b = 0; b < 4096; ++b) {
    values[b * kQuantiseBlock] = 1 + b / 4096.0;
    values[b * kQuantiseBlock + 1] = -1 - b / 4096.0;
  }
  const Tensor x = given(type(), {static_cast<int64_t>(values.size())}, values);
  for (const Rounding& rounding : {Rounding{}, Rounding{.seed = 6}}) {
    expect_rule(x, rounding, 0);
    for (const double code : read(store(x, rounding).codes)) ASSERT_NE(code, 128);
  }
}

// Fractions that are no f32 where the number is a small negative one, and halves of 2^-16.
TEST_P(Quantise, fractions_are_compared_exactly) {
  const double near[] = {-0.5 / 65536,  -0.49999997 / 65536, -0.3,       -1e-6,      1e-30,
                         100.5 / 65536, -65535.5 / 65536,    126.999985, -126.99998, -127,
                         0.999999};
  Values values(2048 * kQuantiseBlock);
  for (size_t i = 0; i < values.size(); ++i) values[i] = near[i % std::size(near)];
  for (size_t i = 0; i < values.size(); i += kQuantiseBlock) values[i] = 127;  // a scale of 1
  expect_rule(given(type(), {static_cast<int64_t>(values.size())}, values), {.seed = 4}, 0);
}

TEST_P(Quantise, ties_go_to_the_even_code) {
  Values values(256, 0.0);
  values[0] = 127;
  for (int i = 1; i < 128; ++i) {
    values[2 * i] = i - 0.5;
    values[2 * i - 1] = 0.5 - i;
  }
  const Tensor x = given(type(), {256}, values);
  expect_rule(x, {}, 0);
  EXPECT_EQ(restore(store(x, {}), DType::f32)[4], 2) << "1.5";
  EXPECT_EQ(restore(store(x, {}), DType::f32)[6], 2) << "2.5";
}

TEST_P(Quantise, errors_stay_within_half_a_step_and_within_one_at_random) {
  for (const int64_t n : kSizes) {
    const Tensor x = random(type(), {n}, 2);
    for (const bool at_random : {false, true}) {
      const Stored s = store(x, at_random ? Rounding{.seed = 3} : Rounding{});
      const Values y = restore(s, DType::f32), scales = read(s.scales);
      for (int64_t i = 0; i < n; ++i)
        ASSERT_LE(std::fabs(y[i] - x[i]),
                  (at_random ? 1 : 0.5) * (1 + 1e-5) * scales[i / kQuantiseBlock])
            << i << " of " << n;
    }
  }
}

TEST_P(Quantise, rounding_at_random_is_right_on_average) {
  // 0.3 of the way from code 31 to code 32, in 400 blocks; and over the steps.
  const int64_t n = 400 * kQuantiseBlock;
  Values values(static_cast<size_t>(n), 31.3 / 127);
  for (int64_t i = 0; i < n; i += kQuantiseBlock) values[i] = 1;
  const Tensor x = given(type(), {n}, values);
  const double wanted = x[1] * 127 - 31;  // of type(), the share of 32s
  const auto share_of = [&](const Values& codes) {
    double up = 0;
    for (int64_t i = 0; i < n; ++i) up += i % kQuantiseBlock != 0 && codes[i] == 32;
    return up / static_cast<double>(n - n / kQuantiseBlock);
  };
  const double five_sigma = 5 * std::sqrt(0.3 * 0.7 / static_cast<double>(n));
  Values before;
  for (const int64_t step : {0, 1, 70000}) {
    StepState state;
    state.inputs.step = step;
    const Values codes = read(store(x, {.seed = 11, .item = 2, .state = place(state)}).codes);
    EXPECT_NEAR(share_of(codes), wanted, five_sigma);
    int64_t same = 0;
    for (size_t i = 0; i < before.size(); ++i) same += codes[i] == before[i];
    EXPECT_LT(same, n * 7 / 10) << "every step draws anew";
    before = codes;
  }
}

TEST_P(Quantise, zeros_and_numbers_too_small_are_zeros) {
  for (const double small : {0.0, type() == DType::f16 ? 0.0 : 1e-37}) {
    const Stored s = store(given(type(), {300}, Values(300, small)), {.seed = 1});
    expect_equal(s.scales, {0, 0}, "scales");
    EXPECT_EQ(restore(s, type()), Values(300, 0.0));
  }
}

// So that a vote on what is read back still sees the overflow.
TEST_P(Quantise, a_block_that_is_not_finite_is_read_back_as_no_number) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, static_cast<double>(NAN)})
    for (const bool at_random : {false, true}) {
      Values values(700, 0.5);
      values[300] = bad;
      const Stored s =
          store(given(type(), {700}, values), at_random ? Rounding{.seed = 1} : Rounding{});
      const Values scales = read(s.scales), y = restore(s, type());
      EXPECT_TRUE(std::isfinite(scales[0]) && std::isnan(scales[1]) && std::isfinite(scales[2]));
      for (size_t i = 0; i < 700; ++i) EXPECT_EQ(std::isnan(y[i]), 256 <= i && i < 512) << i;
    }
}

TEST_P(Quantise, restored_numbers_are_code_times_scale_rounded_once) {
  for (const int64_t n : kSizes) {
    const Stored s = store(random(type(), {n}, 5), {});
    const Values codes = read(s.codes), scales = read(s.scales);
    Values wanted;
    for (int64_t i = 0; i < n; ++i)
      wanted.push_back(static_cast<float>(codes[i] < 128 ? codes[i] : codes[i] - 256) *
                       static_cast<float>(scales[i / kQuantiseBlock]));
    EXPECT_EQ(restore(s, type()), given(type(), {n}, wanted).values);
  }
}

TEST_P(Quantise, a_piece_of_whole_blocks_gives_the_codes_of_the_whole) {
  const int64_t n = 5 * kQuantiseBlock + 77;
  const Tensor x = random(type(), {n});
  const Stored whole = store(x, {.seed = 8, .item = 4});
  const int64_t begin = 2 * kQuantiseBlock;
  const Stored part =
      store(x.view.slice_flat(begin, n), {.seed = 8, .item = 4, .first_index = begin});
  expect_equal(part.codes, read(whole.codes.view.slice_flat(begin, n)), "codes");
  expect_equal(part.scales, read(whole.scales.view.slice_flat(2, 6)), "scales");
}

TEST_P(Quantise, numbers_and_codes_at_any_offset) {
  const int64_t n = 1000;
  const Tensor x = random(type(), {n + 8}), y = random(type(), {n + 8});
  for (const int64_t offset : {1, 2, 4, 7}) {
    const TensorView piece = x.view.slice_flat(offset, offset + n);
    const Tensor codes = given(DType::u8, {n + 8}, Values(n + 8, 99)),
                 scales = poisoned(DType::f32, {blocks(n)});
    const TensorView inside = codes.view.slice_flat(offset, offset + n);
    kernels().quantise_8bit(piece, {.seed = 2}, inside, scales, stream());
    const Stored apart = store(piece, {.seed = 2});
    expect_equal(inside, read(apart.codes), "codes");
    const Values around = read(codes);
    EXPECT_TRUE(around[offset - 1] == 99 && around[offset + n] == 99);
    Values wanted = y.values;
    const Values restored = restore(apart, type());
    std::copy(restored.begin(), restored.end(), wanted.begin() + offset);
    const Tensor target = given(type(), {n + 8}, y.values);
    kernels().dequantise_8bit(inside, scales, target.view.slice_flat(offset, offset + n), stream());
    expect_equal(target, wanted, "restored");
  }
}

VOLTAPILE_CONFORMANCE(Quantise);

}  // namespace
}  // namespace voltapile::conformance
