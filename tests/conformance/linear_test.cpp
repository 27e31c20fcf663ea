// Matrix products with their epilogues.
#include "rig.hpp"

namespace voltapile::conformance {
namespace {

double gelu_of(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double gelu_slope_of(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
}

struct Extents {
  int64_t rows, in, out;
};
const Extents kExtents[] = {{1, 1, 1},      {5, 3, 7},     {64, 64, 64},   {197, 33, 65},
                            {300, 130, 70}, {3, 48, 1000}, {129, 17, 770}, {513, 64, 192}};

// a (m,k) b (k,n)
Values product(const Values& a, const Values& b, int64_t m, int64_t k, int64_t n) {
  Values c(static_cast<size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t l = 0; l < k; ++l)
      for (int64_t j = 0; j < n; ++j)
        c[static_cast<size_t>(i * n + j)] +=
            a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(l * n + j)];
  return c;
}
Values transposed(const Values& a, int64_t rows, int64_t columns) {
  Values t(a.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      t[static_cast<size_t>(j * rows + i)] = a[static_cast<size_t>(i * columns + j)];
  return t;
}
void add_rows(Values& a, const Values& row) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += row[i % row.size()];
}

class Linear : public Conformance {};

TEST_P(Linear, forward_with_and_without_bias) {
  for (const Extents& e : kExtents) {
    const Tensor x = random(type(), {e.rows, e.in}), w = random(type(), {e.out, e.in}),
                 b = random(type(), {e.out}), y = poisoned(type(), {e.rows, e.out}),
                 plain = poisoned(type(), {e.rows, e.out});
    kernels().linear(x, w, b, y, stream());
    kernels().linear(x, w, {}, plain, stream());
    Values wanted = product(x.values, transposed(w.values, e.out, e.in), e.rows, e.in, e.out);
    expect_near(plain, wanted, "x w^T");
    add_rows(wanted, b.values);
    expect_near(y, wanted, "x w^T + b");
  }
}

TEST_P(Linear, gelu_of_a_product_keeps_what_it_was_taken_of) {
  for (const Extents& e : kExtents) {
    const Tensor x = random(type(), {e.rows, e.in}, 2), w = random(type(), {e.out, e.in}),
                 b = random(type(), {e.out}), pre = poisoned(type(), {e.rows, e.out}),
                 y = poisoned(type(), {e.rows, e.out}), again = poisoned(type(), {e.rows, e.out});
    kernels().linear_gelu(x, w, b, pre, y, stream());
    kernels().gelu(pre, again, stream());
    Values wanted = product(x.values, transposed(w.values, e.out, e.in), e.rows, e.in, e.out);
    add_rows(wanted, b.values);
    expect_near(pre, wanted, "pre");
    Values activated = wanted;
    for (double& v : activated) v = gelu_of(v);
    expect_near(y, activated, "gelu(pre)");
    expect_equal(again, read(y), "gelu redone");
  }
}

TEST_P(Linear, backward_of_the_input) {
  for (const Extents& e : kExtents) {
    const Tensor dy = random(type(), {e.rows, e.out}), w = random(type(), {e.out, e.in}),
                 pre = random(type(), {e.rows, e.in}, 3), dx = poisoned(type(), {e.rows, e.in}),
                 dpre = poisoned(type(), {e.rows, e.in});
    kernels().linear_backward_input(dy, w, dx, stream());
    kernels().linear_backward_input_gelu(dy, w, pre, dpre, stream());
    Values wanted = product(dy.values, w.values, e.rows, e.out, e.in);
    expect_near(dx, wanted, "dy w");
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] *= gelu_slope_of(pre.values[i]);
    expect_near(dpre, wanted, "dy w gelu'");
  }
}

TEST_P(Linear, backward_of_the_weight_is_added_to_what_is_there) {
  for (const Extents& e : kExtents) {
    const Tensor dy = random(type(), {e.rows, e.out}), x = random(type(), {e.rows, e.in}),
                 dw = random(acc(), {e.out, e.in}), db = random(acc(), {e.out}),
                 alone = random(acc(), {e.out, e.in});
    kernels().linear_backward_weight(dy, x, dw, db, stream());
    kernels().linear_backward_weight(dy, x, alone, {}, stream());
    Values wanted = product(transposed(dy.values, e.rows, e.out), x.values, e.out, e.rows, e.in);
    Values wanted_alone = wanted, wanted_bias = db.values;
    add_rows(wanted, dw.values);
    add_rows(wanted_alone, alone.values);
    for (int64_t r = 0; r < e.rows; ++r)
      for (int64_t c = 0; c < e.out; ++c) wanted_bias[static_cast<size_t>(c)] += dy[r * e.out + c];
    expect_near(dw, wanted, "dw");
    expect_near(db, wanted_bias, "db");
    expect_near(alone, wanted_alone, "dw without db");
  }
}

TEST_P(Linear, no_rows_leave_weight_gradients_alone) {
  const Tensor dy = poisoned(type(), {0, 8}), x = poisoned(type(), {0, 5}),
               dw = random(acc(), {8, 5}), db = random(acc(), {8});
  kernels().linear_backward_weight(dy, x, dw, db, stream());
  expect_equal(dw, dw.values, "dw");
  expect_equal(db, db.values, "db");
}

TEST_P(Linear, gelu_is_right_far_out) {
  Values at;
  for (double x = -9; x <= 9; x += 1.0 / 64) at.push_back(x);
  at.insert(at.end(), {-60.0, -30.0, -13.5, 13.5, 30.0, 60.0, 0.0});
  const Shape shape{static_cast<int64_t>(at.size())};
  const Tensor pre = given(type(), shape, at), y = poisoned(type(), shape);
  kernels().gelu(pre, y, stream());
  const Values got = read(y);
  // Relative to each value: the tails are not lost in the rounding of 1 + erf.
  for (size_t i = 0; i < at.size(); ++i) {
    const double wanted = gelu_of(pre.values[i]);
    const double smallest = type() == DType::f16 ? 6e-8 : type() == DType::f64 ? 1e-300 : 1e-36;
    EXPECT_LE(std::fabs(got[i] - wanted), tolerance_of(type()) * std::fabs(wanted) + smallest)
        << "gelu(" << at[i] << ")";
  }
}

VOLTAPILE_CONFORMANCE(Linear);

}  // namespace
}  // namespace voltapile::conformance
