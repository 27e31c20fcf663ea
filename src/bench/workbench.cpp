#include "workbench.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "voltapile/base/philox.hpp"

namespace voltapile::bench {
namespace {

// No power of two, so that rows of a tensor differ; a multiple of 4 kB in every type.
constexpr int64_t kSourceElements = 3 << 20;
constexpr int64_t kQuickSourceElements = 3 << 13;

// Of one `repeat` each: never the same twice on a device.
uint64_t next_key() {
  static std::atomic<uint64_t> key = 0;
  return ++key;
}

Timing timing_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const size_t middle = seconds.size() / 2;
  const double median =
      seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
  return {median, seconds.front(), seconds.back()};
}

}  // namespace

// Large enough on a GPU that no tensor of a block stays in its cache.
Sizes sizes_of(const BenchOptions& options) {
  Sizes sizes{.batch = 256,
              .tokens = 256,
              .dim = 1024,
              .heads = 16,
              .mlp = 4096,
              .classes = 1000,
              .image = 224,
              .patch = 14,
              .parameters = 300'000'000,
              .product = 8192,
              .copy_bytes = size_t{1} << 30,
              .repetition_seconds = 2e-3,
              .case_seconds = 0.06,
              .most_repetitions = 25};
  if (options.device == DeviceKind::cpu) {
    sizes.batch = 4;
    sizes.parameters = 10'000'000;
    sizes.product = 2048;
    sizes.copy_bytes = size_t{1} << 28;
    sizes.case_seconds = 0.3;
  }
  if (options.quick) {
    sizes.batch = 2;
    sizes.tokens = 16;
    sizes.dim = 128;
    sizes.heads = 2;
    sizes.mlp = 256;
    sizes.classes = 10;
    sizes.image = 32;
    sizes.patch = 8;
    sizes.parameters = 10'000;
    sizes.product = 128;
    sizes.copy_bytes = size_t{1} << 20;
    sizes.repetition_seconds = 1e-4;
    sizes.case_seconds = 1e-3;
    sizes.most_repetitions = 5;
  }
  return sizes;
}

Workbench::Workbench(Device& device, DType type, const Sizes& sizes, Lists& lists,
                     Contents contents)
    : device_(device), type_(type), sizes_(sizes), lists_(lists), contents_(contents) {
  if (contents_ == Contents::none) return;
  const int64_t elements =
      sizes.parameters > kSourceElements ? kSourceElements : kQuickSourceElements;
  source_ = empty(DType::f32, {elements});
  auto* values = reinterpret_cast<float*>(host_buffer(source_.bytes()).data());
  for (int64_t i = 0; i < elements; i += 4) {
    const auto words = random_words(1, Purpose::synthetic, 1, static_cast<uint64_t>(i));
    for (int64_t k = 0; k < 4; ++k)
      values[i + k] = 2 * uniform01(words[static_cast<size_t>(k)]) - 1;
  }
  device_.copy(source_.data, values, source_.bytes(), stream());
  finish();
}

Workbench::~Workbench() { device_.wait_until_idle(); }

void Workbench::finish(Lane lane) { device_.wait_on_host(device_.record(device_.stream(lane))); }

TensorView Workbench::empty(DType type, Shape shape) {
  const size_t bytes = static_cast<size_t>(shape.elements()) * bytes_of(type);
  buffers_.push_back(device_.allocate(bytes, "bench"));
  return {buffers_.back().data(), type, shape};
}

Buffer& Workbench::host_buffer(size_t bytes) {
  host_buffers_.push_back(device_.allocate_host(bytes, "bench"));
  return host_buffers_.back();
}

TensorView Workbench::random(DType type, Shape shape) {
  const TensorView made = empty(type, shape);
  if (contents_ == Contents::none) return made;
  const int64_t period = source_.elements();
  for (int64_t begin = 0; begin < made.elements(); begin += period) {
    const int64_t count = std::min(period, made.elements() - begin);
    kernels().cast(source_.slice_flat(0, count), made.slice_flat(begin, begin + count), stream());
  }
  return made;
}

TensorView Workbench::filled(DType type, Shape shape, double value) {
  const TensorView made = empty(type, shape);
  if (contents_ == Contents::random) kernels().fill(made, value, stream());
  return made;
}

TensorView Workbench::bytes(Shape shape) {
  const TensorView made = empty(DType::u8, shape);
  if (contents_ == Contents::none) return made;
  for (size_t begin = 0; begin < made.bytes(); begin += source_.bytes())
    device_.copy(static_cast<std::byte*>(made.data) + begin, source_.data,
                 std::min(source_.bytes(), made.bytes() - begin), stream());
  return made;
}

TensorView Workbench::labels(int64_t samples, int64_t classes) {
  const TensorView made = empty(DType::i32, {samples});
  if (contents_ == Contents::none) return made;
  auto* values = reinterpret_cast<int32_t*>(host_buffer(made.bytes()).data());
  for (int64_t i = 0; i < samples; ++i) values[i] = static_cast<int32_t>(i * 7 % classes);
  device_.copy(made.data, values, made.bytes(), stream());
  return made;
}

StepState* Workbench::state() {
  buffers_.push_back(device_.allocate(sizeof(StepState), "bench"));
  auto* made = reinterpret_cast<StepState*>(buffers_.back().data());
  if (contents_ == Contents::none) return made;
  auto* values = reinterpret_cast<StepState*>(host_buffer(sizeof(StepState)).data());
  *values = StepState{};
  values->inputs.learning_rate = 1e-6;
  values->multiplier = 1;
  device_.copy(made, values, sizeof(StepState), stream());
  return made;
}

std::vector<double> Workbench::measure(const std::function<void()>& issue, Lane lane,
                                       int repetitions) {
  Stream& on = device_.stream(lane);
  const size_t bytes = static_cast<size_t>(repetitions + 1) * sizeof(double);
  const Buffer marks = device_.allocate_host(bytes, "bench");
  auto* at = reinterpret_cast<double*>(marks.data());
  device_.mark(on, at);
  for (int i = 0; i < repetitions; ++i) {
    issue();
    device_.mark(on, at + i + 1);
  }
  finish(lane);
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) seconds.push_back(std::max(at[i + 1] - at[i], 1e-9));
  return seconds;
}

Timing Workbench::time(const std::function<void()>& call, Issue issue, Lane lane) {
  finish();                // operands are there
  measure(call, lane, 1);  // libraries load code, choose algorithms
  // The least: what the host adds, or a first touch, is in the others.
  const std::vector<double> first = measure(call, lane, 3);
  const double about = *std::min_element(first.begin(), first.end());
  const int calls =
      std::clamp(static_cast<int>(std::ceil(sizes_.repetition_seconds / about)), 1, 200);
  const int repetitions = std::clamp(static_cast<int>(sizes_.case_seconds / (calls * about)), 5,
                                     sizes_.most_repetitions);
  const uint64_t key = next_key();
  const auto all = [&] {
    for (int i = 0; i < calls; ++i) call();
  };
  const auto once = [&] {
    if (issue == Issue::recorded) device_.repeat(device_.stream(lane), key, all);
    else all();
  };
  once();  // a device that records does so the second time
  once();
  finish(lane);
  Timing timing = timing_of(measure(once, lane, repetitions));
  for (double* seconds : {&timing.seconds, &timing.lowest, &timing.highest}) *seconds /= calls;
  return timing;
}

Timing Workbench::time_fixed(const std::function<void()>& call, Lane lane, int calls,
                             int repetitions) {
  const auto issue = [&] {
    for (int i = 0; i < calls; ++i) call();
  };
  finish();
  measure(issue, lane, 1);
  Timing timing = timing_of(measure(issue, lane, repetitions));
  for (double* seconds : {&timing.seconds, &timing.lowest, &timing.highest}) *seconds /= calls;
  return timing;
}

}  // namespace voltapile::bench
