// Layer norm, and the same on the heads of q and k.
#include "rig.hpp"

namespace voltapile::conformance {
namespace {

constexpr double kEps = 1e-6;

struct Norm {
  double mean = 0, rstd = 0;
};
Norm norm_of(const double* x, int64_t n) {
  Norm norm;
  for (int64_t i = 0; i < n; ++i) norm.mean += x[i] / static_cast<double>(n);
  double variance = 0;
  for (int64_t i = 0; i < n; ++i)
    variance += (x[i] - norm.mean) * (x[i] - norm.mean) / static_cast<double>(n);
  norm.rstd = 1 / std::sqrt(variance + kEps);
  return norm;
}
// Gradient of a row's input; dgamma and dbeta are added to.
void row_backward(const double* dy, const double* x, const double* gamma, Norm norm, int64_t n,
                  double* dx, double* dgamma, double* dbeta) {
  double sum = 0, dot = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double normal = (x[i] - norm.mean) * norm.rstd;
    sum += dy[i] * gamma[i] / static_cast<double>(n);
    dot += dy[i] * gamma[i] * normal / static_cast<double>(n);
    dgamma[i] += dy[i] * normal;
    dbeta[i] += dy[i];
  }
  for (int64_t i = 0; i < n; ++i)
    dx[i] = norm.rstd * (dy[i] * gamma[i] - sum - (x[i] - norm.mean) * norm.rstd * dot);
}

struct Extents {
  int64_t rows, columns;
};
// Rows that a GPU keeps in a warp, in a block of few or many threads, or nowhere.
const Extents kExtents[] = {{1, 1},    {1, 2},    {7, 5},     {33, 64},  {197, 192}, {1030, 48},
                            {3, 1000}, {9, 1024}, {3, 1025},  {5, 1280}, {2, 2049},  {3, 4096},
                            {3, 8192}, {2, 9001}, {2, 16384}, {3, 20000}};

class LayerNorm : public Conformance {
 protected:
  Tensor means(const Values& x, const Extents& e) {
    Values values;
    for (int64_t r = 0; r < e.rows; ++r)
      values.push_back(norm_of(&x[r * e.columns], e.columns).mean);
    return given(acc(), {e.rows}, values);
  }
  Tensor rstds(const Values& x, const Extents& e) {
    Values values;
    for (int64_t r = 0; r < e.rows; ++r)
      values.push_back(norm_of(&x[r * e.columns], e.columns).rstd);
    return given(acc(), {e.rows}, values);
  }
};

TEST_P(LayerNorm, forward_and_its_repetition_from_statistics) {
  for (const Extents& e : kExtents) {
    const Tensor x = random(type(), {e.rows, e.columns}, 2), gamma = random(type(), {e.columns}),
                 beta = random(type(), {e.columns}), y = poisoned(type(), {e.rows, e.columns}),
                 mean = poisoned(acc(), {e.rows}), rstd = poisoned(acc(), {e.rows}),
                 again = poisoned(type(), {e.rows, e.columns});
    kernels().layer_norm(x, gamma, beta, kEps, y, mean, rstd, stream());
    kernels().layer_norm_apply(x, gamma, beta, mean, rstd, again, stream());
    Values wanted(x.values.size());
    for (int64_t r = 0; r < e.rows; ++r) {
      const Norm norm = norm_of(&x.values[r * e.columns], e.columns);
      for (int64_t c = 0; c < e.columns; ++c)
        wanted[r * e.columns + c] =
            (x[r * e.columns + c] - norm.mean) * norm.rstd * gamma[c] + beta[c];
    }
    expect_near(y, wanted, "y");
    expect_near(mean, means(x.values, e).values, "mean");
    expect_near(rstd, rstds(x.values, e).values, "rstd");
    expect_equal(again, read(y), "applied again");
  }
}

TEST_P(LayerNorm, a_large_mean_does_not_swamp_the_variance) {
  const int64_t n = 192;
  Values values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = 512 + (i % 2 ? 8 : -8);
  const Tensor x = given(type(), {1, n}, values), gamma = given(type(), {n}, Values(n, 1.0)),
               beta = given(type(), {n}, Values(n, 0.0)), y = poisoned(type(), {1, n}),
               mean = poisoned(acc(), {1}), rstd = poisoned(acc(), {1});
  kernels().layer_norm(x, gamma, beta, kEps, y, mean, rstd, stream());
  Values wanted(n);
  for (int64_t i = 0; i < n; ++i) wanted[i] = (i % 2 ? 8 : -8) / std::sqrt(64 + kEps);
  expect_near(y, wanted, "y");
}

TEST_P(LayerNorm, backward_with_every_choice_of_optional_operands) {
  for (const Extents& e : kExtents) {
    const Shape shape{e.rows, e.columns};
    const Tensor dy = random(type(), shape), x = random(type(), shape, 2),
                 gamma = random(type(), {e.columns}), residual = random(type(), shape),
                 mean = means(x.values, e), rstd = rstds(x.values, e);
    Values dx(x.values.size()), with_residual(x.values.size());
    Values dgamma(e.columns, 0.0), dbeta(e.columns, 0.0);
    for (int64_t r = 0; r < e.rows; ++r)
      row_backward(&dy.values[r * e.columns], &x.values[r * e.columns], gamma.values.data(),
                   {mean[r], rstd[r]}, e.columns, &dx[r * e.columns], dgamma.data(), dbeta.data());
    for (size_t i = 0; i < dx.size(); ++i) with_residual[i] = dx[i] + residual.values[i];

    const Tensor alone = poisoned(type(), shape), all = poisoned(type(), shape),
                 gamma_sum = random(acc(), {e.columns}), beta_sum = random(acc(), {e.columns}),
                 only_beta = random(acc(), {e.columns});
    kernels().layer_norm_backward(dy, x, gamma, mean, rstd, {}, alone, {}, {}, stream());
    kernels().layer_norm_backward(dy, x, gamma, mean, rstd, residual, all, gamma_sum, beta_sum,
                                  stream());
    if (e.columns > 2) expect_near(alone, dx, "dx");
    expect_near(all, with_residual, "dx + residual");
    kernels().layer_norm_backward(dy, x, gamma, mean, rstd, residual, residual, {}, only_beta,
                                  stream());
    expect_equal(residual, read(all), "in place of the residual");
    for (int64_t c = 0; c < e.columns; ++c) dgamma[c] += gamma_sum[c];
    expect_near(gamma_sum, dgamma, "dgamma");
    Values first = dbeta, second = dbeta;
    for (int64_t c = 0; c < e.columns; ++c) first[c] += beta_sum[c], second[c] += only_beta[c];
    expect_near(beta_sum, first, "dbeta");
    expect_near(only_beta, second, "dbeta alone");
  }
}

// A GPU reads 16 bytes at once where it can.
TEST_P(LayerNorm, operands_that_start_between_wide_words) {
  for (const Extents& e : {Extents{5, 64}, Extents{3, 1024}, Extents{2, 20000}}) {
    const Shape shape{e.rows, e.columns};
    const Tensor wide = random(type(), {e.rows * e.columns + 1}, 2), dy = random(type(), shape),
                 gamma = random(type(), {e.columns}), beta = random(type(), {e.columns});
    const TensorView shifted =
        wide.view.slice_flat(1, e.rows * e.columns + 1).reshaped({e.rows, e.columns});
    const Tensor x = given(type(), shape, Values(wide.values.begin() + 1, wide.values.end()));
    const Tensor y = poisoned(type(), shape), mean = poisoned(acc(), {e.rows}),
                 rstd = poisoned(acc(), {e.rows}), dx = poisoned(type(), shape),
                 dgamma = random(acc(), {e.columns}), dbeta = random(acc(), {e.columns});
    kernels().layer_norm(x, gamma, beta, kEps, y, mean, rstd, stream());
    kernels().layer_norm_backward(dy, x, gamma, mean, rstd, {}, dx, dgamma, dbeta, stream());
    const Tensor y2 = poisoned(type(), shape), mean2 = poisoned(acc(), {e.rows}),
                 rstd2 = poisoned(acc(), {e.rows}), dx2 = poisoned(type(), shape),
                 dgamma2 = given(acc(), {e.columns}, dgamma.values),
                 dbeta2 = given(acc(), {e.columns}, dbeta.values);
    kernels().layer_norm(shifted, gamma, beta, kEps, y2, mean2, rstd2, stream());
    kernels().layer_norm_backward(dy, shifted, gamma, mean2, rstd2, {}, dx2, dgamma2, dbeta2,
                                  stream());
    expect_near(y2, read(y), "y");
    expect_near(mean2, read(mean), "mean");
    expect_near(rstd2, read(rstd), "rstd");
    expect_near(dx2, read(dx), "dx");
    expect_near(dgamma2, read(dgamma), "dgamma");
    expect_near(dbeta2, read(dbeta), "dbeta");
  }
}

TEST_P(LayerNorm, heads_of_q_and_k_forward_and_backward) {
  for (const auto& [batch, tokens, heads, dim] : {std::array<int64_t, 4>{1, 1, 1, 4},
                                                  {2, 5, 3, 8},
                                                  {3, 33, 2, 17},
                                                  {1, 197, 3, 64},
                                                  {2, 19, 5, 80},
                                                  {2, 50, 4, 128},
                                                  {1, 9, 2, 256},
                                                  {1, 7, 1, 201}}) {
    const Shape shape{batch, tokens, 3, heads, dim};
    const int64_t rows = batch * tokens, width = heads * dim;
    const Tensor qkv = random(type(), shape, 2), dout = random(type(), shape),
                 out = poisoned(type(), shape), stats = poisoned(acc(), {rows, 2, heads, 2}),
                 dqkv = poisoned(type(), shape);
    const Tensor gamma[2] = {random(type(), {dim}), random(type(), {dim})};
    const Tensor beta[2] = {random(type(), {dim}), random(type(), {dim})};
    const Tensor dgamma[2] = {random(acc(), {dim}), random(acc(), {dim})};
    const Tensor dbeta[2] = {random(acc(), {dim}), random(acc(), {dim})};
    kernels().qk_norm(qkv, gamma[0], beta[0], gamma[1], beta[1], kEps, out, stats, stream());
    kernels().qk_norm_backward(dout, qkv, gamma[0], gamma[1], stats, dqkv, dgamma[0], dbeta[0],
                               dgamma[1], dbeta[1], stream());
    kernels().qk_norm_backward(dout, qkv, gamma[0], gamma[1], stats, dout, {}, {}, {}, {},
                               stream());

    Values y = qkv.values, dx = dout.values, statistics;
    Values gamma_sum[2] = {dgamma[0].values, dgamma[1].values};
    Values beta_sum[2] = {dbeta[0].values, dbeta[1].values};
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t part = 0; part < 2; ++part)
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t at = r * 3 * width + part * width + h * dim;
          const Norm norm = norm_of(&qkv.values[at], dim);
          statistics.insert(statistics.end(), {norm.mean, norm.rstd});
          for (int64_t d = 0; d < dim; ++d)
            y[at + d] = (qkv[at + d] - norm.mean) * norm.rstd * gamma[part][d] + beta[part][d];
          row_backward(&dout.values[at], &qkv.values[at], gamma[part].values.data(), norm, dim,
                       &dx[at], gamma_sum[part].data(), beta_sum[part].data());
        }
    expect_near(out, y, "out");
    expect_near(stats, statistics, "stats");
    expect_near(dqkv, dx, "dqkv");
    expect_equal(dout, read(dqkv), "dqkv in place of dout");
    for (int part = 0; part < 2; ++part) {
      expect_near(dgamma[part], gamma_sum[part], "dgamma");
      expect_near(dbeta[part], beta_sum[part], "dbeta");
    }
  }
}

VOLTAPILE_CONFORMANCE(LayerNorm);

}  // namespace
}  // namespace voltapile::conformance
