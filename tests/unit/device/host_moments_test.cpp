// 8-bit moments: what a code keeps, the same bits everywhere, and training as good as with f32.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "voltapile/device/host/adamw.hpp"

#include "host/adamw_code.hpp"

namespace voltapile::host {
namespace {

TensorView view(std::vector<float>& x) {
  return {x.data(), DType::f32, {static_cast<int64_t>(x.size())}};
}

// Owns moments of n elements, all zero.
struct Moments {
  explicit Moments(size_t n) : m(n), v(n), m_scales((n + 255) / 256), v_scales((n + 255) / 256) {}
  Moments8 views() {
    const auto n = static_cast<int64_t>(m.size());
    return {{m.data(), DType::u8, {n}}, {v.data(), DType::u8, {n}}, view(m_scales), view(v_scales)};
  }
  bool operator==(const Moments& o) const {
    return m == o.m && v == o.v && m_scales == o.m_scales && v_scales == o.v_scales;
  }
  std::vector<uint8_t> m, v;
  std::vector<float> m_scales, v_scales;
};

// Of every magnitude that training gives, and some that it should not.
std::vector<float> samples(size_t n, bool sign) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> exponent(-9, 0), side(-1, 1);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const float block = i / 256 % 3 == 0 ? 1e-3f : i / 256 % 3 == 1 ? 3e-30f : 7e4f;
    x[i] = block * std::pow(10.0f, exponent(random));
    if (sign && side(random) < 0) x[i] = -x[i];
    if (i % 11 == 0) x[i] = 0;
  }
  return x;
}

// The header's formula, in f64.
double magnitude_of(int code, int levels) {
  if (code == 0) return 0;
  const int e = static_cast<int>(std::floor(std::log2(code)));
  return std::pow(10, e - levels + 1) * (0.1 + 0.9 * (code - (1 << e) + 1) / (1 << e));
}

TEST(Moments8, decode_as_the_header_says) {
  for (const Code* code : codes()) {
    std::array<uint8_t, 256> all{};
    for (size_t i = 0; i < 256; ++i) all[i] = static_cast<uint8_t>(i);
    std::array<float, 256> m{}, v{};
    code->m.decode(all.data(), 2.0f, 256, m.data());
    code->v.decode(all.data(), 2.0f, 256, v.data());
    for (int i = 0; i < 256; ++i) {
      const auto at = static_cast<size_t>(i);
      const double of_m = 2 * magnitude_of(i & 127, 7) * (i < 128 ? 1 : -1);
      const double of_v = 2 * magnitude_of(i, 8);
      EXPECT_NEAR(m[at], of_m, 2e-5 * std::fabs(of_m)) << code->name << " m " << i;
      EXPECT_NEAR(v[at], of_v, 2e-5 * of_v) << code->name << " v " << i;
    }
    EXPECT_EQ(m[127], 2.0f);
    EXPECT_EQ(m[255], -2.0f);
    EXPECT_EQ(v[255], 2.0f);
  }
}

TEST(Moments8, give_the_nearest_code_and_never_zero_for_a_v_above_it) {
  const size_t n = 3 * 256 + 77;
  std::vector<float> m = samples(n, true), v = samples(n, false), m2(n), v2(n);
  Moments moments(n);
  ThreadPool pool(2);
  encode_moments(pool, view(m), view(v), moments.views());
  decode_moments(pool, moments.views(), view(m2), view(v2));
  for (size_t i = 0; i < n; ++i) {
    const auto expect_nearest = [&](float x, float got, float scale, int levels, bool lift) {
      double best = INFINITY;
      for (int code = lift && x != 0 ? 1 : 0; code < 1 << levels; ++code)
        best = std::min(best, std::fabs(std::fabs(x) - scale * magnitude_of(code, levels)));
      // What rounding the tables moves the borders by; and zero is no tenth of the first code.
      const double first = scale * magnitude_of(1, levels);
      const double allowed = best + 2e-5 * std::fabs(x) + (std::fabs(x) < first ? 0.1 * first : 0);
      ASSERT_LE(std::fabs(x - got), allowed) << i << ": " << x << " became " << got;
    };
    expect_nearest(m[i], m2[i], moments.m_scales[i / 256], 7, false);
    expect_nearest(v[i], v2[i], moments.v_scales[i / 256], 8, true);
    if (v[i] > 0) { ASSERT_GT(v2[i], 0) << i; }
  }
}

TEST(Moments8, of_a_block_keep_its_greatest_number_and_come_back_as_the_same_codes) {
  const size_t n = 5 * 256 + 3;
  std::vector<float> m = samples(n, true), v = samples(n, false), m2(n), v2(n);
  for (float& x : m) x = -std::fabs(x);  // the greatest is negative
  Moments first(n), second(n);
  ThreadPool pool(2);
  encode_moments(pool, view(m), view(v), first.views());
  decode_moments(pool, first.views(), view(m2), view(v2));
  encode_moments(pool, view(m2), view(v2), second.views());
  EXPECT_TRUE(first == second);
  for (size_t begin = 0; begin < n; begin += 256) {
    const size_t end = std::min(n, begin + 256);
    EXPECT_EQ(*std::min_element(m.begin() + begin, m.begin() + end),
              *std::min_element(m2.begin() + begin, m2.begin() + end));
    EXPECT_EQ(*std::max_element(v.begin() + begin, v.begin() + end),
              *std::max_element(v2.begin() + begin, v2.begin() + end));
  }
}

TEST(Moments8, come_back_as_the_same_codes_whatever_the_scale) {
  for (const Code* code : codes())
    for (const float scale : {1.0f, 0.1f, 3.3e-7f, 1.7e-38f, 9.99e30f, 0x1.fffffep0f}) {
      std::array<uint8_t, 256> all{}, back{};
      std::array<float, 256> x{};
      for (size_t i = 0; i < 256; ++i) all[i] = static_cast<uint8_t>(i);
      code->v.decode(all.data(), scale, 256, x.data());
      EXPECT_EQ(code->v.encode(x.data(), 256, back.data()), scale) << code->name;
      EXPECT_EQ(all, back) << code->name << " v, " << scale;
      EXPECT_TRUE(std::is_sorted(x.begin(), x.end()));
      code->m.decode(all.data(), scale, 256, x.data());
      EXPECT_EQ(code->m.encode(x.data(), 256, back.data()), scale) << code->name;
      EXPECT_EQ(all, back) << code->name << " m, " << scale;
    }
}

TEST(Moments8, of_zeros_and_of_almost_zeros_are_zeros) {
  std::vector<float> m(256, 0.0f), v(256, 0.0f), m2(256, 1.0f), v2(256, 1.0f);
  m[3] = -1e-40f;
  v[5] = 1e-39f;
  Moments moments(256);
  moments.m.assign(256, 0xff);
  moments.v.assign(256, 0xff);
  ThreadPool pool(1);
  encode_moments(pool, view(m), view(v), moments.views());
  decode_moments(pool, moments.views(), view(m2), view(v2));
  EXPECT_EQ(moments.m_scales[0], 0);
  EXPECT_EQ(moments.v_scales[0], 0);
  for (size_t i = 0; i < 256; ++i) {
    EXPECT_EQ(m2[i], 0);
    EXPECT_EQ(v2[i], 0);
  }
}

struct Result {
  std::vector<float> master, ema;
  std::vector<uint16_t> weights;
  Moments moments;
  bool operator==(const Result&) const = default;
};

Result after_steps(const Code& code, int threads, size_t n) {
  Result r{samples(n, true), samples(n, true), std::vector<uint16_t>(n), Moments(n)};
  std::vector<Half> gradients(n);
  StepState state;
  state.inputs.learning_rate = 0.01;
  state.multiplier = 0.5;
  const std::vector<UpdateRun> runs = {{0, 5},
                                       {5, 300, 1, 1},
                                       {600, 601, 0.5, 1},
                                       {601, 700},
                                       {700, static_cast<int64_t>(n) - 1, 0.25, 1}};
  AdamWTask task;
  task.gradients = {gradients.data(), DType::f16, {static_cast<int64_t>(n)}};
  task.master = view(r.master);
  task.moments = r.moments.views();
  task.ema = view(r.ema);
  task.ema_decay = 0.9;
  task.weights = {r.weights.data(), DType::bf16, {static_cast<int64_t>(n)}};
  task.runs = runs;
  task.rules.weight_decay = 0.1;
  task.state = &state;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  ThreadPool pool(threads);
  for (state.adam_step = 0; state.adam_step < 4; ++state.adam_step) {
    for (Half& g : gradients) g = static_cast<Half>(normal(random));
    state.skip = state.adam_step == 2;
    if (state.skip) gradients[9] = static_cast<Half>(NAN);
    adamw(code, pool, task);
  }
  return r;
}

TEST(Moments8, of_frozen_parameters_stay_as_they_are) {
  const size_t n = 3000;
  Result before = {samples(n, true), samples(n, true), {}, Moments(n)}, r = before;
  std::vector<float> gradients(n, 1.0f);
  ThreadPool pool(2);
  encode_moments(pool, view(gradients), view(gradients), r.moments.views());
  const Moments moments = r.moments;
  const UpdateRun run = {1000, 1100};
  StepState state;
  state.inputs.learning_rate = 0.01;
  state.multiplier = 1;
  AdamWTask task;
  task.gradients = view(gradients);
  task.master = view(r.master);
  task.moments = r.moments.views();
  task.ema = view(r.ema);
  task.ema_decay = 0.9;
  task.runs = {&run, 1};
  task.state = &state;
  for (const Code* code : codes()) adamw(*code, pool, task);
  // A block of codes shares a scale: 768 to 1280 holds the run.
  for (size_t i = 0; i < n; ++i) {
    const bool frozen = i < 1000 || i >= 1100;
    EXPECT_EQ(r.master[i] == before.master[i], frozen) << i;
    EXPECT_EQ(r.ema[i] == before.ema[i], frozen) << i;
    if (i >= 768 && i < 1280) continue;
    EXPECT_TRUE(r.moments.m[i] == moments.m[i] && r.moments.v[i] == moments.v[i]) << i;
  }
}

TEST(Moments8, train_to_the_same_bits_on_every_instruction_set_and_number_of_threads) {
  for (const size_t n : {size_t{1000}, size_t{70001}}) {
    const Result first = after_steps(kPortable, 1, n);
    for (const Code* code : codes())
      for (const int threads : {1, 3})
        EXPECT_TRUE(first == after_steps(*code, threads, n)) << code->name << " " << threads;
  }
}

// Trains parameters by gradients of `loss`, in f32 or 8-bit moments, and gives the last loss.
template <class Problem>
double trained(Problem problem, bool small, int steps) {
  const size_t n = problem.parameters.size();
  std::vector<float> gradients(n), m(n), v(n);
  Moments moments(n);
  StepState state;
  state.multiplier = 1;
  AdamWTask task;
  task.gradients = view(gradients);
  task.master = view(problem.parameters);
  if (small) {
    task.moments = moments.views();
  } else {
    task.m = view(m);
    task.v = view(v);
  }
  const UpdateRun all = {0, static_cast<int64_t>(n)};
  task.runs = {&all, 1};
  task.state = &state;
  ThreadPool pool(2);
  for (int step = 0; step < steps; ++step) {
    problem.gradient(step, gradients);
    state.adam_step = step;
    state.inputs.learning_rate = problem.rate * (1 - static_cast<double>(step) / steps);
    adamw(pool, task);
  }
  return problem.loss();
}

// y = x w + noise in 700 unknowns whose scales span three decades.
struct Regression {
  static constexpr size_t kUnknowns = 700, kSamples = 2000, kBatch = 100;
  double rate = 0.02;
  std::vector<float> parameters = std::vector<float>(kUnknowns), x, y;
  Regression() : x(kSamples * kUnknowns), y(kSamples) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> truth(kUnknowns);
    for (float& t : truth) t = normal(random);
    for (size_t s = 0; s < kSamples; ++s) {
      y[s] = 0.5f * normal(random);
      for (size_t i = 0; i < kUnknowns; ++i) {
        const float scale = std::pow(10.0f, -3.0f * static_cast<float>(i % 16) / 16);
        x[s * kUnknowns + i] = scale * normal(random);
        y[s] += x[s * kUnknowns + i] * truth[i];
      }
    }
  }
  float error(size_t s) const {
    float sum = -y[s];
    for (size_t i = 0; i < kUnknowns; ++i) sum += x[s * kUnknowns + i] * parameters[i];
    return sum;
  }
  void gradient(int step, std::vector<float>& g) const {
    std::fill(g.begin(), g.end(), 0.0f);
    for (size_t k = 0; k < kBatch; ++k) {
      const size_t s = (static_cast<size_t>(step) * kBatch + k) % kSamples;
      const float e = error(s) / kBatch;
      for (size_t i = 0; i < kUnknowns; ++i) g[i] += e * x[s * kUnknowns + i];
    }
  }
  double loss() const {
    double sum = 0;
    for (size_t s = 0; s < kSamples; ++s) sum += 0.5 * error(s) * error(s) / kSamples;
    return sum;
  }
};

// Two layers with tanh on points around eight centres that overlap.
struct Classifier {
  static constexpr size_t kIn = 10, kHidden = 24, kClasses = 8, kSamples = 4000, kBatch = 100;
  static constexpr size_t kSecond = kHidden * (kIn + 1), kAll = kSecond + kClasses * (kHidden + 1);
  double rate = 0.01;
  std::vector<float> parameters = std::vector<float>(kAll), x;
  Classifier() : x(kSamples * kIn) {
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    for (float& p : parameters) p = 0.3f * normal(random);
    std::vector<float> centres(kClasses * kIn);
    for (float& c : centres) c = 0.6f * normal(random);
    for (size_t s = 0; s < kSamples; ++s)
      for (size_t i = 0; i < kIn; ++i)
        x[s * kIn + i] = centres[s % kClasses * kIn + i] + normal(random);
  }
  // Loss of a sample; adds its gradient where there is one to add to.
  double sample(size_t s, std::vector<float>* g) const {
    std::array<float, kHidden> h{}, dh{};
    std::array<float, kClasses> p{};
    const float* const w = parameters.data();
    const float* const input = &x[s * kIn];
    for (size_t j = 0; j < kHidden; ++j) {
      float sum = w[j * (kIn + 1) + kIn];
      for (size_t i = 0; i < kIn; ++i) sum += w[j * (kIn + 1) + i] * input[i];
      h[j] = std::tanh(sum);
    }
    float total = 0;
    for (size_t c = 0; c < kClasses; ++c) {
      float sum = w[kSecond + c * (kHidden + 1) + kHidden];
      for (size_t j = 0; j < kHidden; ++j) sum += w[kSecond + c * (kHidden + 1) + j] * h[j];
      total += p[c] = std::exp(sum);
    }
    const size_t label = s % kClasses;
    const double loss = -std::log(p[label] / total);
    if (!g) return loss;
    for (size_t c = 0; c < kClasses; ++c) {
      const float d = (p[c] / total - (c == label ? 1.0f : 0.0f)) / kBatch;
      float* const row = g->data() + kSecond + c * (kHidden + 1);
      row[kHidden] += d;
      for (size_t j = 0; j < kHidden; ++j) {
        row[j] += d * h[j];
        dh[j] += d * w[kSecond + c * (kHidden + 1) + j];
      }
    }
    for (size_t j = 0; j < kHidden; ++j) {
      const float d = dh[j] * (1 - h[j] * h[j]);
      for (size_t i = 0; i < kIn; ++i) (*g)[j * (kIn + 1) + i] += d * input[i];
      (*g)[j * (kIn + 1) + kIn] += d;
    }
    return loss;
  }
  void gradient(int step, std::vector<float>& g) const {
    std::fill(g.begin(), g.end(), 0.0f);
    for (size_t k = 0; k < kBatch; ++k)
      sample((static_cast<size_t>(step) * kBatch + k) % kSamples, &g);
  }
  double loss() const {
    double sum = 0;
    for (size_t s = 0; s < kSamples; ++s) sum += sample(s, nullptr) / kSamples;
    return sum;
  }
};

// Ends within a percent of f32 moments, or better.
template <class Problem>
void expect_as_good(double learnt, int steps) {
  const Problem problem;
  const double before = problem.loss(), wide = trained(problem, false, steps),
               small = trained(problem, true, steps);
  EXPECT_LT(wide, learnt * before);
  EXPECT_LT(small, 1.01 * wide);
  testing::Test::RecordProperty("f32", std::to_string(wide));
  testing::Test::RecordProperty("eight_bits", std::to_string(small));
}

TEST(Moments8, train_a_regression_as_well_as_f32_moments) {
  expect_as_good<Regression>(0.01, 1000);
}
TEST(Moments8, train_a_classifier_as_well_as_f32_moments) { expect_as_good<Classifier>(0.5, 1500); }

TEST(Moments8, are_refused_beside_others_or_with_a_wrong_length) {
  std::vector<float> x(300);
  Moments moments(300);
  StepState state;
  ThreadPool pool(1);
  AdamWTask task;
  task.gradients = task.master = view(x);
  task.moments = moments.views();
  task.state = &state;
  task.m = view(x);
  EXPECT_THROW(adamw(pool, task), Error);
  task.m = {};
  task.moments.v_scales = task.moments.v_scales.slice_flat(0, 1);
  EXPECT_THROW(adamw(pool, task), Error);
}

}  // namespace
}  // namespace voltapile::host
