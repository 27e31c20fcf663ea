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

// As of a model: hundreds of tensors of every size, some empty here, at any offset of a buffer that
// itself starts anywhere.
TEST_P(Optimizer, many_pieces_at_any_offset_and_always_the_same_bits) {
  std::vector<NormPiece> pieces;
  int64_t at = 3;
  for (int i = 0; i < 900; ++i) {
    const int64_t length = i % 7 == 0 ? 0 : i % 97 == 0 ? 20000 : 1 + i * 37 % 331;
    pieces.push_back({at, at + length, 1000 - i});
    at += length + i % 3;
  }
  Values values = random(type(), {at + 5}, 3).values;
  double squares = 0;
  for (const NormPiece& piece : pieces)
    for (int64_t i = piece.begin; i < piece.end; ++i) squares += values[5 + i] * values[5 + i];
  const auto sum = [&](const Tensor& g, const Tensor& bad) {
    const Tensor slots = given(DType::f64, {4}, {0, 0, 0, 0});
    kernels().sum_squares(g.view.slice_flat(5, at + 5), pieces, slots, bad, stream());
    return read(slots);
  };
  const Tensor g = given(type(), {at + 5}, values), bad = given(DType::i32, {1}, {INT_MAX});
  const Values got = sum(g, bad);
  EXPECT_NEAR(got[NormSlots::squares], squares, 1e-9 * squares);
  EXPECT_EQ(got[NormSlots::not_finite], 0);
  EXPECT_EQ(sum(g, bad)[NormSlots::squares], got[NormSlots::squares]);
  expect_equal(bad, {INT_MAX}, "no bad parameter");

  // The last element of one tensor and the first of a later one, whose id is smaller.
  values[5 + pieces[388].end - 1] = NAN;
  values[5 + pieces[803].begin] = INFINITY;
  EXPECT_EQ(sum(given(type(), {at + 5}, values), bad)[NormSlots::not_finite], 2);
  expect_equal(bad, {1000 - 803}, "smallest bad parameter");
}

TEST_P(Optimizer, no_pieces_leave_the_slots_alone) {
  const Tensor g = random(type(), {10}), slots = given(DType::f64, {4}, {1, 2, 3, 4}),
               bad = given(DType::i32, {1}, {9});
  kernels().sum_squares(g, {}, slots, bad, stream());
  expect_equal(slots, {1, 2, 3, 4}, "slots");
  expect_equal(bad, {9}, "first bad parameter");
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

TEST_P(Optimizer, a_norm_for_the_next_step_leaves_its_own_updates_and_the_scale_alone) {
  StepState state;
  state.loss_scale = 2;
  state.good_steps = 5;
  state.adam_step = 17;
  state.multiplier = 0.75;
  StepState* current = place(state);
  StepState ahead;
  ahead.loss_scale = 2;
  ahead.good_steps = 99;
  ahead.skip = 1;
  StepState* next = place(ahead);
  const Tensor slots = given(DType::f64, {4}, {64, 0, 30, 12}),
               bad = given(DType::i32, {1}, {INT_MAX});
  NormRules rules;
  rules.clip = 1;
  rules.for_next = true;
  kernels().finish_norm(slots, bad, rules, current, next, stream());
  const StepState done = read_state(current), after = read_state(next);
  EXPECT_DOUBLE_EQ(done.grad_norm, 4);
  EXPECT_DOUBLE_EQ(done.loss, 2.5);
  EXPECT_EQ(done.multiplier, 0.75);
  EXPECT_EQ(done.skip, 0);
  EXPECT_DOUBLE_EQ(after.multiplier, 1 / (4 + 1e-6) / 2);
  EXPECT_EQ(after.skip, 0);
  EXPECT_EQ(after.adam_step, 18);
  EXPECT_EQ(after.loss_scale, 2);
  EXPECT_EQ(after.good_steps, 99);
  // What is not finite is reported; the updates were done.
  const Tensor worse = given(DType::f64, {4}, {NAN, 1, 30, 12}), name = given(DType::i32, {1}, {6});
  kernels().finish_norm(worse, name, rules, current, next, stream());
  EXPECT_EQ(read_state(current).skip, 1);
  EXPECT_EQ(read_state(current).bad_parameter, 6);
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

// The run that holds element i, or null.
const UpdateRun* run_of(const std::vector<UpdateRun>& runs, int64_t i) {
  for (const UpdateRun& run : runs)
    if (run.begin <= i && i < run.end) return &run;
  return nullptr;
}

TEST_P(Optimizer, adamw_follows_the_published_rule_in_runs_and_leaves_the_rest) {
  const std::vector<UpdateRun> runs = {{0, 70, 1, 1},        {70, 90, 1, 0},
                                       {100, 101, 0.5, 1},   {128, 131, 1, 0},
                                       {131, 30000, 0.1, 1}, {32000, 39000, 3, 0}};
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
    kernels().adamw(g, master, m, second, w, runs, rules, place(state), stream());
    Values p = master.values, first = m.values, squares = second.values;
    for (int64_t i = 0; i < n; ++i) {
      const UpdateRun* const run = run_of(runs, i);
      if (run == nullptr) continue;
      const double gradient = 0.5 * g[i], lr = 0.01 * run->rate;
      p[i] *= 1 - lr * 0.05 * run->decay;
      first[i] = 0.9 * first[i] + (1 - 0.9) * gradient;
      squares[i] = 0.999 * squares[i] + (1 - 0.999) * gradient * gradient;
      p[i] -= lr * first[i] / (1 - std::pow(0.9, 3)) /
              (std::sqrt(squares[i] / (1 - std::pow(0.999, 3))) + 1e-8);
    }
    expect_near(m, first, "m");
    expect_near(second, squares, "v");
    expect_near(master, p, "master");
    expect_near(w, p, "weights");
    for (const auto& [now, before] :
         {std::pair(read(m), m.values), std::pair(read(second), second.values),
          std::pair(read(master), master.values)})
      for (int64_t i = 0; i < n; ++i)
        if (run_of(runs, i) == nullptr) ASSERT_EQ(now[i], before[i]) << "frozen " << i;
    const Tensor rounded = given(type(), {n}, read(master));
    expect_equal(w, rounded.values, "weights are the master's numbers rounded");
  }
}

// One launch over hundreds of tensors: runs begin and end anywhere, and so do shards.
TEST_P(Optimizer, adamw_changes_the_given_runs_alone_in_a_shard_at_any_offset) {
  std::vector<UpdateRun> runs;
  int64_t n = 0;
  for (int i = 0; i < 300; ++i) {
    const int64_t begin = n + i % 5, end = begin + (i % 50 == 0 ? 5000 : 1 + i * 7 % 61);
    runs.push_back({begin, end, 1.0 / (1 + i % 3), static_cast<double>(i % 5 != 0)});
    n = end + (i % 4 == 0 ? 0 : i % 11);
  }
  n += 6001;
  AdamW rules;
  rules.weight_decay = 1;
  StepState state;
  state.inputs.learning_rate = 0.25;
  state.multiplier = 1;
  const StepState* placed = place(state);
  for (const int64_t offset : {0, 1, 4, 6}) {
    // No gradient and no moments: only decay moves a parameter.
    const Values zeros(static_cast<size_t>(n + 8), 0.0);
    const Tensor g = given(type(), {n + 8}, zeros), master = random(acc(), {n + 8}),
                 m = given(acc(), {n + 8}, zeros), v = given(acc(), {n + 8}, zeros),
                 w = random(type(), {n + 8});
    const auto shard = [&, from = offset](const Tensor& t) {
      return t.view.slice_flat(from, from + n);
    };
    kernels().adamw(shard(g), shard(master), shard(m), shard(v), shard(w), runs, rules, placed,
                    stream());
    Values wanted = master.values, weights = w.values;
    for (const UpdateRun& r : runs)
      for (int64_t i = r.begin; i < r.end; ++i) wanted[offset + i] *= 1 - 0.25 * r.rate * r.decay;
    expect_near(master, wanted, "master");
    const Values rounded = given(type(), {n + 8}, read(master)).values;
    for (int64_t i = offset; i < offset + n; ++i) weights[i] = rounded[i];
    expect_equal(w, weights, "weights");
    expect_equal(m, zeros, "m");
  }
}

TEST_P(Optimizer, adamw_keeps_weights_of_the_accumulate_type_in_the_master) {
  if (type() != acc()) GTEST_SKIP() << "weights are rounded";
  const int64_t n = 5003;
  const Tensor g = random(type(), {n}), master = random(acc(), {n}), m = random(acc(), {n}, 0.1),
               v = given(acc(), {n}, Values(n, 0.25)), apart = given(acc(), {n}, master.values),
               m2 = given(acc(), {n}, m.values), v2 = given(acc(), {n}, v.values),
               w = poisoned(type(), {n});
  StepState state;
  state.inputs.learning_rate = 0.01;
  state.multiplier = 1;
  const StepState* placed = place(state);
  const std::vector<UpdateRun> runs = {{0, 4000}, {4500, n}};
  kernels().adamw(g, master, m, v, master, runs, AdamW{}, placed, stream());
  kernels().adamw(g, apart, m2, v2, w, runs, AdamW{}, placed, stream());
  expect_equal(master, read(apart), "in one place and in two");
  expect_equal(w, read(apart), "weights");
}

TEST_P(Optimizer, an_average_moves_by_its_share_and_rests_in_a_skipped_step) {
  const int64_t n = 70001;
  const Tensor x = random(acc(), {n}), average = random(acc(), {n}, 3);
  StepState state;
  kernels().average(x, 0.99, place(state), average, stream());
  Values expected = average.values;
  for (int64_t i = 0; i < n; ++i) expected[i] = 0.99 * expected[i] + 0.01 * x[i];
  expect_near(average, expected, "average");
  const Values before = read(average);
  state.skip = 1;
  kernels().average(x, 0.99, place(state), average, stream());
  expect_equal(average, before, "average of a skipped step");
}

TEST_P(Optimizer, adamw_leaves_everything_alone_when_the_step_is_skipped) {
  const Tensor g = random(type(), {33}), master = random(acc(), {33}), m = random(acc(), {33}),
               v = random(acc(), {33}), w = random(type(), {33});
  StepState state;
  state.inputs.learning_rate = 0.1;
  state.skip = 1;
  const std::vector<UpdateRun> runs = {{0, 33, 1, 1}};
  kernels().adamw(g, master, m, v, w, runs, AdamW{}, place(state), stream());
  expect_equal(master, master.values, "master");
  expect_equal(m, m.values, "m");
  expect_equal(v, v.values, "v");
  expect_equal(w, w.values, "weights");
}

VOLTAPILE_CONFORMANCE(Optimizer);

}  // namespace
}  // namespace voltapile::conformance
