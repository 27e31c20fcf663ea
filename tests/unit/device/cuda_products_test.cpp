// What the conformance suite cannot see of the GPU's matrix products: choices of algorithms,
// graphs, and the kernel that stands in where the library has no algorithm.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "../../../cuda_kernels/gemm.hpp"
#include "../../../cuda_kernels/kernels.hpp"
#include "../../../cuda_kernels/tuning.hpp"
#include "gpu.hpp"

namespace voltapile::cuda {
namespace {

using Bytes = std::vector<std::byte>;

// Some operands of a device, and every product of a linear layer on them.
class Layer {
 public:
  explicit Layer(const CudaOptions& options) : device_(make_cuda_device(options)) {
    for (TensorView* t : {&x_, &w_, &b_, &pre_, &y_, &dx_, &dw_, &db_}) fill(*t);
  }
  void enqueue() {
    Kernels& k = device_->kernels();
    k.linear_gelu(x_, w_, b_, pre_, y_, stream());
    k.linear_backward_input_gelu(y_, w_, x_, dx_, stream());
    k.linear_backward_weight(y_, x_, dw_, db_, stream());
  }
  // Other shapes: what a lane allocates at its first use is there afterwards.
  void enqueue_few_rows() {
    device_->kernels().linear_backward_weight(y_.slice_rows(0, 8), x_.slice_rows(0, 8), dw_, db_,
                                              stream());
  }
  std::vector<Bytes> results() {
    std::vector<Bytes> all;
    for (const TensorView& t : {pre_, y_, dx_, dw_, db_}) all.push_back(read(t));
    return all;
  }
  Stream& stream() { return device_->stream(Lane::compute); }

 private:
  void fill(TensorView& t) {
    buffers_.push_back(device_->allocate(t.bytes(), "test"));
    t.data = buffers_.back().data();
    Bytes bytes(t.bytes());
    for (int64_t i = 0; i < t.elements(); ++i) {
      noise_ = noise_ * 1664525u + 1013904223u;
      const float value = static_cast<float>(noise_ >> 8) * 0x1p-23f - 1.0f;
      if (t.dtype == DType::f32) std::memcpy(bytes.data() + 4 * i, &value, 4);
      else {
        const auto half = static_cast<Half>(value);
        std::memcpy(bytes.data() + 2 * i, &half, 2);
      }
    }
    device_->copy(t.data, bytes.data(), bytes.size(), stream());
    finish();
  }
  Bytes read(const TensorView& t) {
    Bytes bytes(t.bytes());
    device_->copy(bytes.data(), t.data, bytes.size(), stream());
    finish();
    return bytes;
  }
  void finish() { device_->wait_on_host(device_->record(stream())); }

  static constexpr int64_t kRows = 3000, kIn = 256, kOut = 192;  // dw's sums are worth splitting
  uint32_t noise_ = 1;
  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
  TensorView x_ = {nullptr, DType::f16, {kRows, kIn}}, w_ = {nullptr, DType::f16, {kOut, kIn}},
             b_ = {nullptr, DType::f16, {kOut}}, pre_ = {nullptr, DType::f16, {kRows, kOut}},
             y_ = pre_, dx_ = x_, dw_ = {nullptr, DType::f32, {kOut, kIn}},
             db_ = {nullptr, DType::f32, {kOut}};
};

class Products : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
  void TearDown() override { std::filesystem::remove(file_); }
  std::vector<Bytes> results(const std::filesystem::path& file) const {
    CudaOptions options;
    options.tuning_file = file;
    Layer layer(options);
    layer.enqueue();
    return layer.results();
  }
  std::string text() const {
    std::ostringstream text;
    text << std::ifstream(file_, std::ios::binary).rdbuf();
    return text.str();
  }

  const std::filesystem::path file_ =
      std::filesystem::path(testing::TempDir()) / ("products." + std::to_string(getpid()) + ".txt");
};

TEST_F(Products, timing_does_not_show_in_results) {
  const auto first = results({});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(first, results({}));
}

TEST_F(Products, a_resumed_run_takes_the_choices_that_were_kept) {
  const auto first = results(file_);
  const std::string kept = text();
  EXPECT_NE(kept.find("f16->f32 192x256x3000 tn add"), std::string::npos) << kept;
  EXPECT_EQ(first, results(file_));
  EXPECT_EQ(kept, text());
}

TEST_F(Products, a_kept_choice_that_the_library_refuses_is_made_anew) {
  const auto first = results(file_);
  std::istringstream lines(text());
  Algorithm nonsense;
  nonsense.fill(0x7777777777777777u);
  const std::unique_ptr<Device> device = make_cuda_device({});
  TuningFile choices(file_, context_of(*device)->gpu().name, cublasLtGetVersion());
  int replaced = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.size() < 130 || line[128] != ' ') continue;
    choices.keep(line.substr(129), nonsense);
    ++replaced;
  }
  EXPECT_EQ(replaced, 3);
  EXPECT_EQ(first, results(file_));
  EXPECT_EQ(text().find("7777777777777777"), std::string::npos) << text();
}

TEST_F(Products, a_shape_first_met_in_a_capture_gives_the_same_bits) {
  const auto wanted = [] {
    Layer timed({});
    timed.enqueue_few_rows();
    timed.enqueue();
    return timed.results();
  }();
  Layer layer({});  // a thread works with one device at a time
  layer.enqueue_few_rows();
  const cudaStream_t lane = static_cast<CudaStream&>(layer.stream()).handle();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t run = nullptr;
  VP_CUDA(cudaStreamBeginCapture(lane, cudaStreamCaptureModeThreadLocal));
  layer.enqueue();
  VP_CUDA(cudaStreamEndCapture(lane, &graph));
  VP_CUDA(cudaGraphInstantiate(&run, graph, 0));
  VP_CUDA(cudaGraphLaunch(run, lane));
  EXPECT_EQ(wanted, layer.results());
  cudaGraphExecDestroy(run);
  cudaGraphDestroy(graph);
}

// Small integers: every sum is exact, whoever adds it up.
TEST_F(Products, the_plain_kernel_gives_what_the_library_gives) {
  const std::unique_ptr<Device> device = make_cuda_device({});
  Stream& stream = device->stream(Lane::compute);
  MatrixProducts products(*context_of(*device));
  constexpr int64_t kRows = 131, kColumns = 70, kInner = 37;
  const auto integers = [&](int64_t n, DType type) {
    Bytes bytes(static_cast<size_t>(n) * bytes_of(type));
    for (int64_t i = 0; i < n; ++i) {
      const float value = static_cast<float>(i * i % 7 - 3);
      if (type == DType::f32) std::memcpy(bytes.data() + 4 * i, &value, 4);
      else {
        const auto half = static_cast<Half>(value);
        std::memcpy(bytes.data() + 2 * i, &half, 2);
      }
    }
    Buffer buffer = device->allocate(bytes.size(), "test");
    device->copy(buffer.data(), bytes.data(), bytes.size(), stream);
    device->wait_on_host(device->record(stream));
    return buffer;
  };
  const auto bytes_in = [&](const Buffer& buffer) {
    Bytes bytes(buffer.bytes());
    device->copy(bytes.data(), buffer.data(), bytes.size(), stream);
    device->wait_on_host(device->record(stream));
    return bytes;
  };
  for (const Layout left : {Layout::plain, Layout::transposed})
    for (const Layout right : {Layout::plain, Layout::transposed})
      for (const Into into : {Into::overwrite, Into::accumulate}) {
        const DType result = into == Into::accumulate ? DType::f32 : DType::f16;
        const Product product = {DType::f16, result, left, right, into, kRows, kColumns, kInner};
        const Buffer a = integers(kRows * kInner, DType::f16),
                     b = integers(kColumns * kInner, DType::f16),
                     bias = integers(kColumns, DType::f16),
                     out = integers(kRows * kColumns, result),
                     plain = integers(kRows * kColumns, result);
        const void* added = into == Into::overwrite ? bias.data() : nullptr;
        products.multiply(product, {a.data(), b.data(), added, out.data()}, stream);
        plain_product(product, {a.data(), b.data(), added, plain.data()},
                      static_cast<CudaStream&>(stream).handle());
        EXPECT_EQ(bytes_in(out), bytes_in(plain))
            << static_cast<int>(left) << static_cast<int>(right) << static_cast<int>(into);
      }
}

}  // namespace
}  // namespace voltapile::cuda
