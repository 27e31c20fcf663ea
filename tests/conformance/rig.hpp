// Runs one operation on a backend and compares it with a plain double loop. Every backend passes
// the same tests: a case is a backend and a working type.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "voltapile/base/philox.hpp"
#include "voltapile/device/device.hpp"
#include "voltapile/device/kernels.hpp"

#include "gpu.hpp"

namespace voltapile::conformance {

enum class Backend { cpu, cuda };
struct Case {
  Backend backend;
  DType type;
};
inline std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.backend == Backend::cpu ? "cpu_" : "cuda_") +
         std::string(name_of(info.param.type));
}
inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (DType type : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    cases.push_back({Backend::cpu, type});
    if (type != DType::f64) cases.push_back({Backend::cuda, type});
  }
  return cases;
}

// Relative error that results of a type may have.
inline double tolerance_of(DType type) {
  switch (type) {
    case DType::f16: return 2e-3;
    case DType::bf16: return 1e-2;
    case DType::f64: return 1e-12;
    default: return 1e-5;
  }
}

using Values = std::vector<double>;

// A tensor on the device and, where the test gave them, the numbers in it (rounded to its type).
struct Tensor {
  TensorView view;
  Values values;
  operator TensorView() const { return view; }
  double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
};

class Conformance : public testing::TestWithParam<Case> {
 protected:
  DType type() const { return GetParam().type; }
  DType acc() const { return accumulate_type(type()); }
  Device& device() { return *device_; }
  Kernels& kernels() { return device_->kernels(); }
  Stream& stream() { return device_->stream(Lane::compute); }
  void finish() { device_->wait_on_host(device_->record(stream())); }

  Tensor given(DType t, Shape shape, const Values& values) {
    Tensor tensor = poisoned(t, shape);
    std::vector<std::byte> bytes(tensor.view.bytes());
    tensor.values.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i)
      tensor.values[i] = put(t, bytes.data(), i, values[i]);
    device_->copy(tensor.view.data, bytes.data(), bytes.size(), stream());
    finish();
    return tensor;
  }
  // Uniform in [-scale, scale].
  Tensor random(DType t, Shape shape, double scale = 1) {
    Values values(static_cast<size_t>(shape.elements()));
    ++drawn_;
    for (size_t i = 0; i < values.size(); ++i)
      values[i] =
          scale * (2.0 * uniform01(random_words(7, Purpose::synthetic, drawn_, i)[0]) - 1.0);
    return given(t, shape, values);
  }
  // NaN everywhere, as the device hands memory out: what an operation forgets to write fails.
  Tensor poisoned(DType t, Shape shape) {
    const size_t bytes = static_cast<size_t>(shape.elements()) * bytes_of(t);
    buffers_.push_back(device_->allocate(bytes, "test"));
    return {{buffers_.back().data(), t, shape}, {}};
  }
  Values read(const TensorView& t) {
    std::vector<std::byte> bytes(t.bytes());
    device_->copy(bytes.data(), t.data, bytes.size(), stream());
    finish();
    Values values(static_cast<size_t>(t.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = get(t.dtype, bytes.data(), i);
    return values;
  }
  // Errors are relative to the element and the root mean square of all, whichever is larger.
  void expect_near(const TensorView& t, const Values& wanted, const std::string& what) {
    const double tolerance = tolerance_of(type());
    const Values got = read(t);
    ASSERT_EQ(got.size(), wanted.size()) << what;
    double squares = 0;
    for (double w : wanted) squares += w * w;
    const double typical =
        std::sqrt(squares / static_cast<double>(std::max<size_t>(wanted.size(), 1)));
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double allowed = tolerance * std::max(std::fabs(wanted[i]), typical);
      ASSERT_LE(std::fabs(got[i] - wanted[i]), allowed)
          << what << ", element " << i << " of " << t.shape.text() << ": " << got[i] << " for "
          << wanted[i];
    }
  }
  void expect_equal(const TensorView& t, const Values& wanted, const std::string& what) {
    const Values got = read(t);
    ASSERT_EQ(got.size(), wanted.size()) << what;
    for (size_t i = 0; i < wanted.size(); ++i)
      ASSERT_EQ(got[i], wanted[i]) << what << ", element " << i << " of " << t.shape.text();
  }
  // A state on the device.
  StepState* place(const StepState& state) {
    buffers_.push_back(device_->allocate(sizeof(StepState), "test"));
    auto* placed = reinterpret_cast<StepState*>(buffers_.back().data());
    device_->copy(placed, &state, sizeof(state), stream());
    finish();
    return placed;
  }
  StepState read_state(const StepState* placed) {
    StepState state;
    device_->copy(&state, placed, sizeof(state), stream());
    finish();
    return state;
  }

 private:
  template <class T>
  static double put_as(std::byte* bytes, size_t i, T value) {
    std::memcpy(bytes + i * sizeof(T), &value, sizeof(T));
    if constexpr (std::is_same_v<T, BFloat16>) return static_cast<float>(value);
    else return static_cast<double>(value);
  }
  static double put(DType t, std::byte* bytes, size_t i, double value) {
    switch (t) {
      case DType::f16: return put_as(bytes, i, static_cast<Half>(value));
      case DType::bf16: return put_as(bytes, i, BFloat16(static_cast<float>(value)));
      case DType::f32: return put_as(bytes, i, static_cast<float>(value));
      case DType::f64: return put_as(bytes, i, value);
      case DType::u8: return put_as(bytes, i, static_cast<uint8_t>(value));
      case DType::i32: return put_as(bytes, i, static_cast<int32_t>(value));
      case DType::i64: return put_as(bytes, i, static_cast<int64_t>(value));
    }
    return 0;
  }
  template <class T>
  static double get_as(const std::byte* bytes, size_t i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, BFloat16>) return static_cast<float>(value);
    else return static_cast<double>(value);
  }
  static double get(DType t, const std::byte* bytes, size_t i) {
    switch (t) {
      case DType::f16: return get_as<Half>(bytes, i);
      case DType::bf16: return get_as<BFloat16>(bytes, i);
      case DType::f32: return get_as<float>(bytes, i);
      case DType::f64: return get_as<double>(bytes, i);
      case DType::u8: return get_as<uint8_t>(bytes, i);
      case DType::i32: return get_as<int32_t>(bytes, i);
      case DType::i64: return get_as<int64_t>(bytes, i);
    }
    return 0;
  }

  void SetUp() override {
    if (GetParam().backend == Backend::cpu) {
      device_ = make_cpu_device(2);
      return;
    }
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    // What a GPU of sm_70 would run, on any GPU.
    const char* kernels = std::getenv("VOLTAPILE_TEST_KERNELS");
    const bool volta = kernels != nullptr && std::string(kernels) == "volta";
    device_ = make_cuda_device({.kernels = volta ? KernelPath::volta : KernelPath::automatic});
  }

  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
  uint32_t drawn_ = 0;
};

}  // namespace voltapile::conformance

// Runs the family's tests for every backend and type.
#define VOLTAPILE_CONFORMANCE(Suite)                                                               \
  INSTANTIATE_TEST_SUITE_P(Every, Suite, testing::ValuesIn(::voltapile::conformance::all_cases()), \
                           ::voltapile::conformance::name_of_case)
