// AdamW in host memory: right against a plain loop in f64, and the same bits from every instruction
// set, any number of threads, and the CPU device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "voltapile/base/philox.hpp"
#include "voltapile/device/host/adamw.hpp"

#include "host/adamw_code.hpp"

namespace voltapile::host {
namespace {

constexpr DType kAll[] = {DType::f32, DType::f16, DType::bf16};

struct Case {
  DType gradients = DType::f32, weights = DType::f32;
  int64_t n = 0, offset = 0;  // elements of each buffer before the first
  bool ema = true, skip = false;
  std::vector<UpdateRun> runs;
};

double number(const TensorView& t, int64_t i) {
  const auto at = static_cast<size_t>(i);
  switch (t.dtype) {
    case DType::f16: return static_cast<double>(t.as<Half>()[at]);
    case DType::bf16: return static_cast<double>(static_cast<float>(t.as<BFloat16>()[at]));
    default: return static_cast<double>(t.as<float>()[at]);
  }
}

void put(const TensorView& t, int64_t i, float x) {
  const auto at = static_cast<size_t>(i);
  switch (t.dtype) {
    case DType::f16: t.as<Half>()[at] = static_cast<Half>(x); break;
    case DType::bf16: t.as<BFloat16>()[at] = BFloat16(x); break;
    default: t.as<float>()[at] = x;
  }
}

// The first `n` of one item's random numbers in [0, 1), or more: drawn once, as most cases want the
// same.
const std::vector<float>& uniform_numbers(uint32_t item, int64_t n) {
  static std::map<uint32_t, std::vector<float>> drawn;
  std::vector<float>& numbers = drawn[item];
  numbers.reserve(static_cast<size_t>(n) + 4);
  while (static_cast<int64_t>(numbers.size()) < n)
    for (const uint32_t word : random_words(1, Purpose::synthetic, item, numbers.size()))
      numbers.push_back(uniform01(word));
  return numbers;
}

template <class T>
void fill(T* to, const float* numbers, int64_t n, float low, float high) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(low + (high - low) * numbers[i]);
}

// Buffers of one case, the same numbers each time, with guards on both sides.
class Data {
 public:
  explicit Data(const Case& c) : case_(c) {
    state.inputs.learning_rate = 0.01;
    state.adam_step = 2;
    state.multiplier = 0.25;
    state.skip = c.skip ? 1 : 0;
    task.gradients = tensor(c.gradients, 1, -1, 1);
    task.master = tensor(DType::f32, 2, -1, 1);
    task.m = tensor(DType::f32, 3, -0.1f, 0.1f);
    task.v = tensor(DType::f32, 4, 0, 0.1f);
    if (c.ema) task.ema = tensor(DType::f32, 5, -1, 1);
    task.ema_decay = 0.99;
    task.weights = tensor(c.weights, 6, -1, 1);
    task.runs = c.runs;
    task.rules.weight_decay = 0.5;
    task.state = &state;
  }
  Data(const Data&) = delete;

  // Whether all bytes of all buffers are the same, guards too.
  bool same_as(const Data& other) const {
    return std::equal(whole_.begin(), whole_.end(), other.whole_.begin(), other.whole_.end(),
                      [](const TensorView& a, const TensorView& b) {
                        return a.bytes() == b.bytes() &&
                               std::memcmp(a.data, b.data, a.bytes()) == 0;
                      });
  }

  StepState state;
  AdamWTask task;

 private:
  TensorView tensor(DType type, uint32_t item, float low, float high) {
    const auto all = static_cast<size_t>(case_.n + case_.offset + 40);
    auto& memory = memory_.emplace_back(all * bytes_of(type) + 64, std::byte{0xff});
    const auto over = reinterpret_cast<uintptr_t>(memory.data()) % 64;
    const TensorView whole{memory.data() + (64 - over) % 64, type, {static_cast<int64_t>(all)}};
    whole_.push_back(whole);
    const TensorView t = whole.slice_flat(case_.offset, case_.offset + case_.n);
    const float* numbers = uniform_numbers(item, case_.n).data();
    switch (type) {
      case DType::f16: fill(t.as<Half>(), numbers, case_.n, low, high); break;
      case DType::bf16: fill(t.as<BFloat16>(), numbers, case_.n, low, high); break;
      default: fill(t.as<float>(), numbers, case_.n, low, high);
    }
    return t;
  }

  const Case& case_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<TensorView> whole_;
};

// Runs of every length and rule, some touching; the gaps between the others are frozen.
std::vector<UpdateRun> mixed_runs(int64_t n) {
  std::vector<UpdateRun> list;
  for (int64_t begin = 3, i = 0; begin < n; ++i) {
    const int64_t end = std::min(n, begin + 1 + (i % 9 == 0 ? 3000 : i * 7 % 61));
    list.push_back({begin, end, i % 3 == 0 ? 1.0 : 0.1 * static_cast<double>(i % 7),
                    static_cast<double>(i % 2)});
    begin = end + (i % 4 == 0 ? 0 : i % 37);
  }
  return list;
}

void expect_near(double got, double wanted, double tolerance, const char* what, int64_t i) {
  ASSERT_NEAR(got, wanted, tolerance * std::max(std::fabs(wanted), 0.1)) << what << " " << i;
}

void expect_published_rule(const Case& c, const Code& code) {
  const Data before(c), data(c);
  ThreadPool pool(2);
  adamw(code, pool, data.task);
  const AdamWTask &from = before.task, &to = data.task;
  for (int64_t i = 0; i < c.n; ++i) {
    const double rounded = c.weights == DType::f16 ? 5e-4 : c.weights == DType::bf16 ? 4e-3 : 0;
    expect_near(number(to.weights, i), number(to.master, i), rounded, "weights", i);
    const auto run = std::find_if(c.runs.begin(), c.runs.end(),
                                  [i](const UpdateRun& r) { return r.begin <= i && i < r.end; });
    if (run == c.runs.end()) {
      for (const auto& [now, before] :
           {std::pair(to.master, from.master), std::pair(to.m, from.m), std::pair(to.v, from.v)})
        ASSERT_EQ(number(now, i), number(before, i)) << "frozen " << i;
      if (c.ema) { ASSERT_EQ(number(to.ema, i), number(from.ema, i)) << "frozen " << i; }
      continue;
    }
    const double lr = 0.01 * run->rate;
    const double g = 0.25 * number(from.gradients, i);
    const double m = 0.9 * number(from.m, i) + (1 - 0.9) * g;
    const double v = 0.999 * number(from.v, i) + (1 - 0.999) * g * g;
    const double p =
        number(from.master, i) * (1 - lr * 0.5 * run->decay) -
        lr * m / (1 - std::pow(0.9, 3)) / (std::sqrt(v / (1 - std::pow(0.999, 3))) + 1e-8);
    expect_near(number(to.m, i), m, 1e-6, "m", i);
    expect_near(number(to.v, i), v, 1e-6, "v", i);
    expect_near(number(to.master, i), p, 1e-5, "master", i);
    if (c.ema)
      expect_near(number(to.ema, i), 0.99 * number(from.ema, i) + 0.01 * p, 1e-5, "ema", i);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(HostAdamW, follows_the_published_rule_for_every_pair_of_types) {
  for (const Code* code : codes())
    for (const DType gradients : kAll)
      for (const DType weights : kAll)
        for (const bool ema : {true, false}) {
          SCOPED_TRACE(std::string(code->name) + " " + std::string(name_of(gradients)) + " " +
                       std::string(name_of(weights)));
          expect_published_rule({gradients, weights, 70001, 0, ema, false, mixed_runs(70001)},
                                *code);
        }
}

TEST(HostAdamW, rounds_weights_to_nearest_even_and_keeps_what_is_not_finite) {
  const float awkward[] = {0.f,      -0.f,   1.00048828125f, 1.00146484375f, 65519.f,
                           65520.f,  1e30f,  -1e30f,         3e-8f,          2.9e-8f,
                           6e-8f,    5e-41f, 1.00390625f,    1.01171875f,    3.4e38f,
                           INFINITY, NAN,    -INFINITY};
  for (const Code* code : codes())
    for (const DType weights : kAll)
      for (const int64_t n : {18, 100}) {
        Case c{DType::f32, weights, n, 1, false, true, {}};
        const Data data(c);
        for (int64_t i = 0; i < n; ++i) put(data.task.master, i, awkward[i % 18]);
        ThreadPool pool(1);
        adamw(*code, pool, data.task);
        for (int64_t i = 0; i < n; ++i) {
          const TensorView one = data.task.weights.slice_flat(i, i + 1);
          std::byte wanted[4]{};
          put({wanted, weights, {1}}, 0, awkward[i % 18]);
          if (std::isnan(awkward[i % 18])) EXPECT_TRUE(std::isnan(number(one, 0)));
          else
            EXPECT_EQ(std::memcmp(one.data, wanted, bytes_of(weights)), 0)
                << code->name << " " << name_of(weights) << " " << awkward[i % 18];
        }
      }
}

TEST(HostAdamW, gives_the_same_bits_from_every_instruction_set_and_number_of_threads) {
  for (const DType gradients : kAll)
    for (const DType weights : kAll)
      for (const int64_t n : {1, 15, 33, 255, 100003})
        for (const int64_t offset : {0, 1, 6}) {
          const Case c{gradients, weights, n, offset, n % 2 == 1, false, mixed_runs(n)};
          const Data first(c);
          ThreadPool alone(1);
          adamw(kPortable, alone, first.task);
          for (const Code* code : codes())
            for (const int threads : {1, 3}) {
              const Data other(c);
              ThreadPool pool(threads);
              adamw(*code, pool, other.task);
              ASSERT_TRUE(first.same_as(other))
                  << code->name << ", " << threads << " threads, " << name_of(gradients) << " "
                  << name_of(weights) << ", " << n << " elements from " << offset;
            }
        }
}

// Beyond what caches hold, weights are stored in another way.
TEST(HostAdamW, gives_the_same_bits_for_buffers_that_no_cache_holds) {
  for (const DType weights : kAll)
    for (const bool skip : {false, true}) {
      const int64_t n = (int64_t{1} << 22) + 77;
      const Case c{DType::f16,
                   weights,
                   n,
                   3,
                   false,
                   skip,
                   {{100, 2000001, 1, 1}, {2000005, 3000000, 0.5}, {3000000, n - 1}}};
      const Data first(c);
      ThreadPool pool(2);
      adamw(kPortable, pool, first.task);
      for (const Code* code : codes()) {
        const Data other(c);
        adamw(*code, pool, other.task);
        ASSERT_TRUE(first.same_as(other)) << code->name << " " << name_of(weights);
      }
    }
}

TEST(HostAdamW, gives_the_same_bits_as_the_cpu_device) {
  const auto device = make_cpu_device(2);
  for (const DType gradients : kAll)
    for (const DType weights : kAll) {
      const Case c{gradients, weights, 50001, 1, false, false, mixed_runs(50001)};
      const Data ours(c), theirs(c);
      ThreadPool pool(2);
      adamw(pool, ours.task);
      Stream& stream = device->stream(Lane::compute);
      const AdamWTask& t = theirs.task;
      device->kernels().adamw(t.gradients, t.master, t.m, t.v, t.weights, t.runs, t.rules, t.state,
                              stream);
      device->wait_on_host(device->record(stream));
      EXPECT_TRUE(ours.same_as(theirs)) << name_of(gradients) << " " << name_of(weights);
    }
}

TEST(HostAdamW, a_skipped_step_writes_the_weights_alone) {
  for (const Code* code : codes()) {
    const Case c{DType::f16, DType::f16, 40001, 1, true, true, mixed_runs(40001)};
    const Data before(c), data(c);
    // Not finite, as is usual then.
    put(data.task.gradients, 7, INFINITY);
    put(before.task.gradients, 7, INFINITY);
    for (int64_t i = 0; i < c.n; ++i)
      put(before.task.weights, i, static_cast<float>(number(before.task.master, i)));
    ThreadPool pool(2);
    adamw(*code, pool, data.task);
    EXPECT_TRUE(before.same_as(data)) << code->name;
  }
}

// The host writes weights where the gradients were: frozen ones too.
TEST(HostAdamW, weights_of_frozen_parameters_may_lie_where_their_gradients_were) {
  for (const Code* code : codes()) {
    const Case c{DType::f16, DType::f16, 40001, 1, false, false, {{700, 20001}}};
    const Data data(c), apart(c);
    ThreadPool pool(2);
    AdamWTask task = data.task;
    task.weights = task.gradients;
    adamw(*code, pool, task);
    adamw(*code, pool, apart.task);
    EXPECT_EQ(std::memcmp(task.weights.data, apart.task.weights.data, task.weights.bytes()), 0)
        << code->name;
    EXPECT_EQ(std::memcmp(task.master.data, apart.task.master.data, task.master.bytes()), 0);
  }
}

TEST(HostAdamW, weights_may_be_the_master_or_nowhere) {
  const Case c{DType::f16, DType::f32, 10007, 0, true, false, mixed_runs(10007)};
  const Data apart(c), together(c), nowhere(c);
  ThreadPool pool(2);
  adamw(pool, apart.task);
  AdamWTask task = together.task;
  task.weights = task.master;
  adamw(pool, task);
  task = nowhere.task;
  task.weights = {};
  adamw(pool, task);
  EXPECT_TRUE(together.same_as(nowhere));
  for (int64_t i = 0; i < c.n; ++i)
    ASSERT_EQ(number(apart.task.master, i), number(together.task.master, i));
}

TEST(HostAdamW, names_what_has_a_wrong_type_or_length) {
  const Case c{DType::f16, DType::f16, 10, 0, true, false, {}};
  const Data data(c);
  ThreadPool pool(1);
  for (TensorView AdamWTask::*member : {&AdamWTask::gradients, &AdamWTask::m, &AdamWTask::v,
                                        &AdamWTask::ema, &AdamWTask::weights}) {
    AdamWTask task = data.task;
    task.*member = (task.*member).slice_flat(0, 9);
    EXPECT_THROW(adamw(pool, task), Error);
  }
  AdamWTask task = data.task;
  task.gradients.dtype = DType::f64;
  EXPECT_THROW(adamw(pool, task), Error);
}

TEST(HostAdamW, names_the_instruction_set_it_uses) {
  EXPECT_EQ(instruction_set(), codes().front()->name);
  EXPECT_EQ(codes().back()->name, "portable");
}

}  // namespace
}  // namespace voltapile::host
