// The gradient norm, the loss scale, AdamW.
#include <climits>
#include <limits>

#include "rig.hpp"

namespace voltapile::conformance {
namespace {

class Optimizer : public Conformance {};

TEST_P(Optimizer, squares_are_summed_over_the_pieces_alone) {
  const int64_t n = 100000;
  const std::vector<NormPiece> pieces = {
      {0, 5, 3}, {64, 65, 4}, {128, 70000, 5}, {70016, 99000, 9}};
  const Tensor g = random(type(), {n}), slots = given(DType::f64, {4}, {1, 2, 3, 4}),
               bad = given(DType::i32, {1}, {INT_MAX});
  kernels().sum_squares(g, pieces, slots, bad, stream());
  double squares = 1;
  for (const NormPiece& piece : pieces)
    for (int64_t i = piece.begin; i < piece.end; ++i) squares += g[i] * g[i];
  const Values got = read(slots);
  EXPECT_NEAR(got[NormSlots::squares], squares, 1e-9 * squares);
  EXPECT_EQ(got[NormSlots::not_finite], 2);
  EXPECT_EQ(got[NormSlots::loss], 3);
  EXPECT_EQ(got[NormSlots::samples], 4);
  expect_equal(bad, {INT_MAX}, "no bad parameter");
}

TEST_P(Optimizer, numbers_that_are_not_finite_are_counted_and_the_first_parameter_named) {
  const double infinity = std::numeric_limits<double>::infinity();
  Values values(1000, 0.5);
  values[10] = infinity;
  values[700] = std::nan("");
  values[701] = -infinity;
  values[999] = infinity;  // outside of every piece
  const std::vector<NormPiece> pieces = {{600, 800, 2}, {0, 500, 7}};
  const Tensor g = given(type(), {1000}, values), slots = given(DType::f64, {4}, {0, 0, 0, 0}),
               bad = given(DType::i32, {1}, {5});
  kernels().sum_squares(g, pieces, slots, bad, stream());
  EXPECT_EQ(read(slots)[NormSlots::not_finite], 3);
  expect_equal(bad, {2}, "first bad parameter");
}

struct Norm {
  double squares, not_finite = 0;
};

TEST_P(Optimizer, a_finite_step_clips_and_lets_the_scale_grow_on_time) {
  StepState state;
  state.loss_scale = 1024;
  state.good_steps = 5;
  state.adam_step = 17;
  state.skipped_steps = 2;
  StepState* current = place(state);
  StepState ahead;
  ahead.inputs.learning_rate = 0.125;  // the engine's: left alone
  StepState* next = place(ahead);
  const Tensor slots = given(DType::f64, {4}, {std::pow(1024.0 * 4, 2), 0, 30, 12}),
               bad = given(DType::i32, {1}, {INT_MAX});
  NormRules rules;
  rules.clip = 1;
  rules.dynamic_scale = true;
  rules.growth_interval = 7;
  kernels().finish_norm(slots, bad, rules, current, next, stream());
  const StepState done = read_state(current), after = read_state(next);
  EXPECT_DOUBLE_EQ(done.grad_norm, 4);
  EXPECT_DOUBLE_EQ(done.multiplier, 1 / (4 + 1e-6) / 1024);
  EXPECT_DOUBLE_EQ(done.loss, 2.5);
  EXPECT_EQ(done.skip, 0);
  EXPECT_EQ(done.bad_parameter, -1);
  EXPECT_EQ(after.loss_scale, 1024);
  EXPECT_EQ(after.good_steps, 6);
  EXPECT_EQ(after.adam_step, 18);
  EXPECT_EQ(after.skipped_steps, 2);
  EXPECT_EQ(after.inputs.learning_rate, 0.125);

  kernels().finish_norm(slots, bad, rules, next, current, stream());
  EXPECT_EQ(read_state(current).loss_scale, 2048) << "after growth_interval good steps";
  EXPECT_EQ(read_state(current).good_steps, 0);
  rules.max_scale = 2048;
  rules.growth_interval = 1;
  kernels().finish_norm(slots, bad, rules, current, next, stream());
  EXPECT_EQ(read_state(next).loss_scale, 2048) << "not beyond max_scale";
}

TEST_P(Optimizer, a_step_that_overflowed_is_skipped_and_halves_the_scale) {
  for (const Norm norm : {Norm{9, 1}, Norm{INFINITY}, Norm{NAN}}) {
    StepState state;
    state.loss_scale = 3;
    state.good_steps = 99;
    state.adam_step = 4;
    StepState* current = place(state);
    StepState* next = place({});
    const Tensor slots = given(DType::f64, {4}, {norm.squares, norm.not_finite, 1, 1}),
                 bad = given(DType::i32, {1}, {6});
    NormRules rules;
    rules.dynamic_scale = true;
    rules.min_scale = 2;
    kernels().finish_norm(slots, bad, rules, current, next, stream());
    const StepState done = read_state(current), after = read_state(next);
    EXPECT_EQ(done.skip, 1);
    EXPECT_EQ(done.bad_parameter, 6);
    EXPECT_EQ(after.loss_scale, 2) << "not below min_scale";
    EXPECT_EQ(after.good_steps, 0);
    EXPECT_EQ(after.adam_step, 4);
    EXPECT_EQ(after.skipped_steps, 1);
  }
}

TEST_P(Optimizer, adamw_follows_the_published_rule) {
  const std::vector<Range> decayed = {{0, 70}, {100, 101}, {128, 40000}};
  AdamW rules;
  rules.weight_decay = 0.05;
  const int64_t n = 40100;
  for (const DType gradient_type : {acc(), type()}) {
    const Tensor g = random(gradient_type, {n}), master = random(acc(), {n}),
                 m = random(acc(), {n}, 0.1), v = random(acc(), {n}), w = poisoned(type(), {n});
    Values square = v.values;
    for (double& x : square) x = x * x;
    const Tensor second = given(acc(), {n}, square);
    StepState state;
    state.inputs.learning_rate = 0.01;
    state.adam_step = 2;
    state.multiplier = 0.5;
    kernels().adamw(g, master, m, second, w, decayed, rules, place(state), stream());
    Values p = master.values, first = m.values, squares = second.values;
    for (int64_t i = 0; i < n; ++i) {
      bool decays = false;
      for (const Range& r : decayed) decays |= r.begin <= i && i < r.end;
      const double gradient = 0.5 * g[i];
      if (decays) p[i] *= 1 - 0.01 * 0.05;
      first[i] = 0.9 * first[i] + (1 - 0.9) * gradient;
      squares[i] = 0.999 * squares[i] + (1 - 0.999) * gradient * gradient;
      p[i] -= 0.01 * first[i] / (1 - std::pow(0.9, 3)) /
              (std::sqrt(squares[i] / (1 - std::pow(0.999, 3))) + 1e-8);
    }
    expect_near(m, first, "m");
    expect_near(second, squares, "v");
    expect_near(master, p, "master");
    expect_near(w, p, "weights");
    const Tensor rounded = given(type(), {n}, read(master));
    expect_equal(w, rounded.values, "weights are the master's numbers rounded");
  }
}

TEST_P(Optimizer, adamw_leaves_everything_alone_when_the_step_is_skipped) {
  const Tensor g = random(type(), {33}), master = random(acc(), {33}), m = random(acc(), {33}),
               v = random(acc(), {33}), w = random(type(), {33});
  StepState state;
  state.inputs.learning_rate = 0.1;
  state.skip = 1;
  kernels().adamw(g, master, m, v, w, {}, AdamW{}, place(state), stream());
  expect_equal(master, master.values, "master");
  expect_equal(m, m.values, "m");
  expect_equal(v, v.values, "v");
  expect_equal(w, w.values, "weights");
}

VOLTAPILE_CONFORMANCE(Optimizer);

}  // namespace
}  // namespace voltapile::conformance
