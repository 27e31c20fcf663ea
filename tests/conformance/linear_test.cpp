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

// A matrix may be a slice of something longer: its first element is then aligned to itself only.
TEST_P(Linear, operands_may_start_anywhere) {
  const int64_t rows = 65, in = 64, out = 48;
  const auto behind_one = [](const Tensor& t, int64_t r, int64_t c) {
    return t.view.slice_flat(1, 1 + r * c).reshaped({r, c});
  };
  const auto values_behind_one = [](const Tensor& t) {
    return Values(t.values.begin() + 1, t.values.end());
  };
  const Tensor x = random(type(), {1 + rows * in}), w = random(type(), {1 + out * in}),
               b = random(type(), {1 + out}), y = poisoned(type(), {1 + rows * out}),
               activated = poisoned(type(), {1 + rows * out}), dw = random(acc(), {1 + out * in}),
               db = random(acc(), {1 + out});
  const TensorView y_view = behind_one(y, rows, out),
                   activated_view = behind_one(activated, rows, out);
  kernels().linear_gelu(behind_one(x, rows, in), behind_one(w, out, in),
                        b.view.slice_flat(1, out + 1), y_view, activated_view, stream());
  const Values x_values = values_behind_one(x);
  Values wanted = product(x_values, transposed(values_behind_one(w), out, in), rows, in, out);
  add_rows(wanted, values_behind_one(b));
  expect_near(y_view, wanted, "x w^T + b");
  for (double& v : wanted) v = gelu_of(v);
  expect_near(activated_view, wanted, "gelu(x w^T + b)");

  const Values dy = read(y_view);
  kernels().linear_backward_weight(y_view, behind_one(x, rows, in), behind_one(dw, out, in),
                                   db.view.slice_flat(1, out + 1), stream());
  Values wanted_dw = product(transposed(dy, rows, out), x_values, out, rows, in),
         wanted_db = values_behind_one(db);
  add_rows(wanted_dw, values_behind_one(dw));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < out; ++c)
      wanted_db[static_cast<size_t>(c)] += dy[static_cast<size_t>(r * out + c)];
  expect_near(behind_one(dw, out, in), wanted_dw, "dw");
  expect_near(db.view.slice_flat(1, out + 1), wanted_db, "db");
}

TEST_P(Linear, the_same_call_gives_the_same_bits) {
  const Tensor x = random(type(), {300, 130}), w = random(type(), {70, 130}),
               y = poisoned(type(), {300, 70}), again = poisoned(type(), {300, 70}),
               dy = random(type(), {300, 70}), dw = given(acc(), {70, 130}, Values(70 * 130, 0.0)),
               dw_again = given(acc(), {70, 130}, Values(70 * 130, 0.0)),
               db = given(acc(), {70}, Values(70, 0.0)),
               db_again = given(acc(), {70}, Values(70, 0.0));
  kernels().linear(x, w, {}, y, stream());
  kernels().linear(x, w, {}, again, stream());
  expect_equal(again, read(y), "x w^T");
  kernels().linear_backward_weight(dy, x, dw, db, stream());
  kernels().linear_backward_weight(dy, x, dw_again, db_again, stream());
  expect_equal(dw_again, read(dw), "dw");
  expect_equal(db_again, read(db), "db");
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
