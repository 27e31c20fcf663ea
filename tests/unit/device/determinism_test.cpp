// The same bits for any number of threads, and for any repetition.
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "voltapile/base/philox.hpp"
#include "voltapile/device/device.hpp"
#include "voltapile/device/kernels.hpp"

namespace voltapile {
namespace {

// Every operation that adds up over rows, on shapes that do not divide into whole pieces.
std::vector<std::byte> results(int threads) {
  const auto device = make_cpu_device(threads);
  Kernels& k = device->kernels();
  Stream& s = device->stream(Lane::compute);
  std::vector<Buffer> buffers;
  std::vector<TensorView> outputs;
  uint32_t item = 0;
  const auto tensor = [&](Shape shape) {
    buffers.push_back(device->allocate(static_cast<size_t>(shape.elements()) * 4, "test"));
    TensorView t{buffers.back().data(), DType::f32, shape};
    ++item;
    for (int64_t i = 0; i < t.elements(); ++i)
      t.as<float>()[i] =
          uniform01(random_words(1, Purpose::synthetic, item, static_cast<uint64_t>(i))[0]) - 0.5f;
    outputs.push_back(t);
    return t;
  };
  const int64_t rows = 3 * 197, c = 200, m = 777;
  const TensorView x = tensor({rows, c}), h = tensor({rows, c}), mean = tensor({rows}),
                   rstd = tensor({rows}), gamma = tensor({c}), beta = tensor({c}),
                   w = tensor({m, c}), b = tensor({m}), pre = tensor({rows, m}),
                   y = tensor({rows, m}), dw = tensor({m, c}), db = tensor({m}),
                   dx = tensor({rows, c}), dgamma = tensor({c}), dbeta = tensor({c}),
                   qkv = tensor({3, 197, 3, 4, 50}), out = tensor({3, 197, 4, 50}),
                   lse = tensor({3, 4, 197}), dqkv = tensor({3, 197, 3, 4, 50}),
                   dposition = tensor({197, c});
  k.layer_norm(x, gamma, beta, 1e-6, h, mean, rstd, s);
  k.linear_gelu(h, w, b, pre, y, s);
  k.linear_backward_weight(y, h, dw, db, s);
  k.linear_backward_input_gelu(h, w.reshaped({c, m}), pre, y, s);
  k.linear_backward_input(y, w, dx, s);
  k.layer_norm_backward(dx, x, gamma, mean, rstd, h, dx, dgamma, dbeta, s);
  k.residual_backward(dx, x, beta, gamma, {}, h, dbeta, dgamma, s);
  k.attention(qkv, {}, out, lse, s);
  k.attention_backward(out, qkv, {}, out, lse, dqkv, s);
  k.add_position_backward(dx.reshaped({3, 197, c}), {}, {}, dposition, s);
  const std::vector<NormPiece> pieces = {{0, 100000, 0}, {100003, 150000, 1}};
  TensorView slots = tensor({8}), bad = tensor({1});
  slots.dtype = DType::f64;
  slots.shape = {4};
  bad.dtype = DType::i32;
  k.fill(slots, 0, s);
  k.sum_squares(dw.slice_flat(0, 150000), pieces, slots, bad, s);
  device->wait_on_host(device->record(s));
  std::vector<std::byte> all;
  for (const TensorView& t : outputs) {
    const auto* data = static_cast<const std::byte*>(t.data);
    all.insert(all.end(), data, data + t.bytes());
  }
  return all;
}

TEST(Determinism, results_do_not_depend_on_the_number_of_threads) {
  const auto one = results(1);
  for (int threads : {1, 2, 3, 5}) {
    const auto many = results(threads);
    ASSERT_EQ(one.size(), many.size());
    EXPECT_EQ(std::memcmp(one.data(), many.data(), one.size()), 0) << threads << " threads";
  }
}

}  // namespace
}  // namespace voltapile
