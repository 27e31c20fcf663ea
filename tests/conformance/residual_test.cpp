// The residual branch with bias, layer scale and stochastic depth.
#include "rig.hpp"

namespace voltapile::conformance {
namespace {

struct Extents {
  int64_t rows, columns;
};
const Extents kExtents[] = {{1, 1},    {7, 5},    {60, 64},  {394, 192}, {1030, 48}, {3, 1000},
                            {9, 1024}, {5, 1025}, {5, 1280}, {2, 4099},  {3, 8192},  {2, 20000}};

class Residual : public Conformance {
 protected:
  // Samples of 5 rows, the first of which has 2 of them left.
  DropPath drop(float rate) {
    StepState state;
    state.inputs.first_sample = 1000;
    DropPath path;
    path.rate = rate;
    path.seed = 3;
    path.item = 9;
    path.state = place(state);
    path.sample_offset = 11;
    path.row_offset = 3;
    path.rows_per_sample = 5;
    return path;
  }
  static double keep(const DropPath& path, int64_t row) {
    if (path.rate == 0) return 1;
    const int64_t sample =
        1000 + path.sample_offset + (path.row_offset + row) / path.rows_per_sample;
    const auto words =
        random_words(path.seed, Purpose::drop_path, path.item, static_cast<uint64_t>(sample));
    return uniform01(words[0]) >= path.rate ? 1.0 / (1.0 - double{path.rate}) : 0.0;
  }
};

TEST_P(Residual, forward_with_every_choice_of_bias_scale_and_drop) {
  for (const Extents& e : kExtents)
    for (int choice = 0; choice < 8; ++choice) {
      const Shape shape{e.rows, e.columns};
      const Tensor x = random(type(), shape), branch = random(type(), shape),
                   bias = choice & 1 ? random(type(), {e.columns}) : Tensor{},
                   scale = choice & 2 ? random(type(), {e.columns}) : Tensor{},
                   y = poisoned(type(), shape);
      const DropPath path = drop(choice & 4 ? 0.5f : 0.0f);
      kernels().residual(x, branch, bias, scale, path, y, stream());
      Values wanted(x.values.size());
      for (int64_t r = 0; r < e.rows; ++r)
        for (int64_t c = 0; c < e.columns; ++c) {
          const size_t i = r * e.columns + c;
          wanted[i] = x.values[i] + keep(path, r) * (scale.view ? scale[c] : 1.0) *
                                        (branch.values[i] + (bias.view ? bias[c] : 0.0));
        }
      expect_near(y, wanted, "y");
      kernels().residual(x, branch, bias, scale, path, x, stream());
      expect_equal(x, read(y), "y in place of x");
    }
}

TEST_P(Residual, with_layer_norm_equals_one_after_the_other) {
  for (const Extents& e : kExtents) {
    const Shape shape{e.rows, e.columns};
    const Tensor x = random(type(), shape), branch = random(type(), shape),
                 bias = random(type(), {e.columns}), scale = random(type(), {e.columns}),
                 gamma = random(type(), {e.columns}), beta = random(type(), {e.columns});
    const Tensor y1 = poisoned(type(), shape), h1 = poisoned(type(), shape),
                 mean1 = poisoned(acc(), {e.rows}), rstd1 = poisoned(acc(), {e.rows}),
                 y2 = poisoned(type(), shape), h2 = poisoned(type(), shape),
                 mean2 = poisoned(acc(), {e.rows}), rstd2 = poisoned(acc(), {e.rows});
    const DropPath path = drop(0.25f);
    kernels().residual(x, branch, bias, scale, path, y1, stream());
    kernels().layer_norm(y1, gamma, beta, 1e-6, h1, mean1, rstd1, stream());
    kernels().residual_layer_norm(x, branch, bias, scale, path, gamma, beta, 1e-6, y2, h2, mean2,
                                  rstd2, stream());
    expect_near(y2, read(y1), "y");
    expect_near(h2, read(h1), "h");
    expect_near(mean2, read(mean1), "mean");
    expect_near(rstd2, read(rstd1), "rstd");
  }
}

TEST_P(Residual, backward_together_and_in_two_calls) {
  for (const Extents& e : kExtents)
    for (int choice = 0; choice < 4; ++choice) {
      const Shape shape{e.rows, e.columns};
      const Tensor dy = random(type(), shape), branch = random(type(), shape),
                   bias = choice & 1 ? random(type(), {e.columns}) : Tensor{},
                   scale = choice & 2 ? random(type(), {e.columns}) : Tensor{};
      const DropPath path = drop(0.5f);
      const Tensor together = poisoned(type(), shape), dbias = random(acc(), {e.columns}),
                   dscale = random(acc(), {e.columns}), first = poisoned(type(), shape),
                   dbias2 = given(acc(), {e.columns}, dbias.values),
                   dscale2 = given(acc(), {e.columns}, dscale.values);
      kernels().residual_backward(dy, branch, bias, scale, path, together, dbias, dscale, stream());
      kernels().residual_backward(dy, {}, bias, scale, path, first, {}, {}, stream());
      kernels().residual_backward(dy, branch, bias, scale, path, {}, dbias2, dscale2, stream());
      Values wanted(dy.values.size()), bias_sum = dbias.values, scale_sum = dscale.values;
      for (int64_t r = 0; r < e.rows; ++r)
        for (int64_t c = 0; c < e.columns; ++c) {
          const size_t i = r * e.columns + c;
          const double kept = keep(path, r) * dy.values[i];
          wanted[i] = kept * (scale.view ? scale[c] : 1.0);
          bias_sum[c] += wanted[i];
          scale_sum[c] += kept * (branch.values[i] + (bias.view ? bias[c] : 0.0));
        }
      expect_near(together, wanted, "dbranch");
      expect_equal(first, read(together), "dbranch alone");
      expect_near(dbias, bias_sum, "dbias");
      expect_near(dscale, scale_sum, "dscale");
      expect_equal(dbias2, read(dbias), "dbias later");
      expect_equal(dscale2, read(dscale), "dscale later");
    }
}

VOLTAPILE_CONFORMANCE(Residual);

}  // namespace
}  // namespace voltapile::conformance
