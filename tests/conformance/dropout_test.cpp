// Dropout: what is dropped depends on the run's sample and the element's place in it alone.
#include "rig.hpp"

namespace voltapile::conformance {
namespace {

class DropoutRule : public Conformance {
 protected:
  const StepState* starting_at(int64_t sample) {
    StepState state;
    state.inputs.first_sample = sample;
    return place(state);
  }
  Values run(const TensorView& x, const Dropout& drop) {
    const Tensor y = poisoned(type(), x.shape);
    kernels().dropout(x, drop, y, stream());
    return read(y);
  }
};

TEST_P(DropoutRule, kept_elements_are_those_of_the_rule) {
  struct Extents {
    int64_t rows, columns, rows_per_sample, row_offset, column_offset, row_columns;
  };
  for (const Extents& e :
       {Extents{1, 1, 1, 0, 0, 0}, Extents{6, 5, 3, 0, 0, 0}, Extents{34, 64, 17, 0, 0, 0},
        Extents{40, 1032, 20, 0, 0, 0}, Extents{5, 8, 3, 4, 16, 24}, Extents{7, 6, 7, 14, 3, 12},
        Extents{3, 16, 3, 0, 2, 32}, Extents{9, 72, 3, 1, 72, 144}}) {
    const int64_t first_sample = 1000003, sample_offset = 5;
    const Dropout drop = {.rate = 0.25,
                          .seed = 77,
                          .item = 6,
                          .state = starting_at(first_sample),
                          .sample_offset = sample_offset,
                          .row_offset = e.row_offset,
                          .rows_per_sample = e.rows_per_sample,
                          .column_offset = e.column_offset,
                          .row_columns = e.row_columns};
    const Tensor x = random(type(), {e.rows, e.columns});
    const int64_t width = e.row_columns > 0 ? e.row_columns : e.columns;
    Values wanted;
    for (int64_t r = 0; r < e.rows; ++r)
      for (int64_t c = 0; c < e.columns; ++c) {
        const int64_t row = e.row_offset + r;
        const int64_t sample = first_sample + sample_offset + row / e.rows_per_sample;
        const auto k = static_cast<uint64_t>(
            (sample * e.rows_per_sample + row % e.rows_per_sample) * width + e.column_offset + c);
        const float uniform = uniform01(random_words(77, Purpose::dropout, 6, k / 4)[k % 4]);
        wanted.push_back(uniform >= 0.25f ? x[r * e.columns + c] / 0.75 : 0.0);
      }
    const Tensor y = poisoned(type(), {e.rows, e.columns});
    kernels().dropout(x, drop, y, stream());
    expect_near(y, wanted, "y");
    const Values got = read(y);
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(got[i] == 0, wanted[i] == 0) << i;
    kernels().dropout(x, drop, x, stream());
    expect_equal(x, got, "in place");
  }
}

TEST_P(DropoutRule, the_share_of_what_is_kept_is_right) {
  const int64_t n = 100000;
  const Tensor x = given(type(), {100, n / 100}, Values(n, 1.0));
  const Values y = run(x, {.rate = 0.1f, .seed = 3, .state = starting_at(0)});
  const auto kept =
      static_cast<double>(std::count_if(y.begin(), y.end(), [](double v) { return v != 0; }));
  EXPECT_NEAR(kept / n, 0.9, 5 * std::sqrt(0.1 * 0.9 / n));
}

TEST_P(DropoutRule, no_rate_copies_and_needs_no_state) {
  const Tensor x = random(type(), {7, 9});
  EXPECT_EQ(run(x, {}), x.values);
}

// What a step's first half has on one rank, and its second on another, or its columns and tokens.
TEST_P(DropoutRule, parts_of_a_batch_drop_what_the_whole_drops) {
  const int64_t samples = 4, tokens = 6, columns = 40;
  const Tensor x = random(type(), {samples * tokens, columns});
  const Dropout whole = {
      .rate = 0.5, .seed = 9, .item = 1, .state = starting_at(64), .rows_per_sample = tokens};
  const Values wanted = run(x, whole);

  Dropout second_half = whole;
  second_half.sample_offset = 2;
  EXPECT_EQ(run(x.view.slice_rows(12, 24), second_half),
            Values(wanted.begin() + 12 * columns, wanted.end()));

  Dropout next_step = whole;
  next_step.state = starting_at(66);
  EXPECT_EQ(run(x.view.slice_rows(12, 24), next_step),
            Values(wanted.begin() + 12 * columns, wanted.end()));

  Dropout some_tokens = whole;  // a tokens' divide of the micro-batch: sequence parallelism
  some_tokens.row_offset = 9;
  EXPECT_EQ(run(x.view.slice_rows(9, 15), some_tokens),
            Values(wanted.begin() + 9 * columns, wanted.begin() + 15 * columns));

  for (const int64_t begin : {0, 16, 17}) {  // columns of a tensor rank
    const int64_t width = 16;
    Values part, expected;
    for (int64_t r = 0; r < samples * tokens; ++r)
      for (int64_t c = begin; c < begin + width; ++c) {
        part.push_back(x[r * columns + c]);
        expected.push_back(wanted[r * columns + c]);
      }
    Dropout some_columns = whole;
    some_columns.column_offset = begin;
    some_columns.row_columns = columns;
    EXPECT_EQ(run(given(type(), {samples * tokens, width}, part), some_columns), expected);
  }
}

TEST_P(DropoutRule, gradients_are_dropped_where_activations_are) {
  const Tensor x = given(type(), {32, 24}, Values(32 * 24, 1.0)), dy = random(type(), {32, 24});
  const Dropout drop = {.rate = 0.5, .seed = 1, .state = starting_at(5), .rows_per_sample = 8};
  const Values y = run(x, drop), dx = run(dy, drop);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(dx[i], 2 * (y[i] != 0) * dy.values[i]);
}

TEST_P(DropoutRule, other_places_and_seeds_drop_others) {
  const Tensor x = given(type(), {64, 64}, Values(4096, 1.0));
  const StepState* state = starting_at(0);
  const Values y = run(x, {.rate = 0.5, .seed = 1, .item = 1, .state = state});
  for (const Dropout& other : {Dropout{.rate = 0.5, .seed = 2, .item = 1, .state = state},
                               Dropout{.rate = 0.5, .seed = 1, .item = 2, .state = state}}) {
    const Values z = run(x, other);
    int same = 0;
    for (size_t i = 0; i < y.size(); ++i) same += y[i] == z[i];
    EXPECT_NEAR(same / 4096.0, 0.5, 0.05);
  }
}

TEST_P(DropoutRule, tensors_at_any_offset) {
  const Tensor x = random(type(), {2 * 512 + 3}), y = poisoned(type(), {2 * 512 + 5});
  const Dropout drop = {.rate = 0.5, .seed = 1, .state = starting_at(5)};
  const TensorView from = x.view.slice_flat(3, 3 + 1024).reshaped({2, 512});
  kernels().dropout(from, drop, y.view.slice_flat(5, 5 + 1024).reshaped({2, 512}), stream());
  EXPECT_EQ(read(y.view.slice_flat(5, 5 + 1024)), run(from, drop));
  EXPECT_TRUE(std::isnan(read(y.view.slice_flat(4, 5))[0]));
}

VOLTAPILE_CONFORMANCE(DropoutRule);

}  // namespace
}  // namespace voltapile::conformance
