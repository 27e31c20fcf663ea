// Times every kernel of one training step, alone: kernel_benchmark [threads] [ti|small] [type].
// Not a test. "cpu" is processor time of all threads (steady on a shared machine), "wall" the
// clock; both are the least of several runs. The last line sums the step: calls x time.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <time.h>

#include "voltapile/base/philox.hpp"
#include "voltapile/device/device.hpp"
#include "voltapile/device/kernels.hpp"

namespace {

using namespace voltapile;

double seconds(clockid_t clock) {
  timespec at;
  clock_gettime(clock, &at);
  return static_cast<double>(at.tv_sec) + 1e-9 * static_cast<double>(at.tv_nsec);
}

struct Model {
  int64_t batch, tokens, dim, heads, mlp, depth, patch_elements, classes, parameters;
  int64_t rows() const { return batch * tokens; }
};
// ViT-Ti/16 at 224 with batch 32; the quickstart's model with a micro-batch of 16.
const Model kTiny{32, 197, 192, 3, 768, 12, 768, 1000, 5717416};
const Model kSmall{16, 50, 64, 4, 256, 6, 16, 10, 310000};

class Bench {
 public:
  Bench(int threads, DType type) : device_(make_cpu_device(threads)), type_(type) {}
  Kernels& k() { return device_->kernels(); }
  Stream& s() { return device_->stream(Lane::compute); }

  TensorView tensor(Shape shape, DType type) {
    buffers_.push_back(
        device_->allocate(static_cast<size_t>(shape.elements()) * bytes_of(type), "benchmark"));
    TensorView to{buffers_.back().data(), type, shape};
    if (type == DType::u8 || type == DType::i32) {
      std::memset(to.data, 0, to.bytes());
      return to;
    }
    std::vector<float> values(static_cast<size_t>(shape.elements()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = uniform01(random_words(1, Purpose::synthetic, 1, i)[0]) - 0.5f;
    k().cast({values.data(), DType::f32, shape}, to, s());
    finish();
    return to;
  }
  TensorView working(Shape shape) { return tensor(shape, type_); }
  TensorView acc(Shape shape) { return tensor(shape, accumulate_type(type_)); }
  void finish() { device_->wait_on_host(device_->record(s())); }

  void operator()(const char* name, double calls, double flops, double bytes,
                  const std::function<void()>& call) {
    call();
    finish();
    double cpu = 1e9, wall = 1e9, spent = 0;
    int repeats = 1;
    for (int run = 0; run < 40 && (run < 5 || spent < 0.4); ++run) {
      const double cpu0 = seconds(CLOCK_PROCESS_CPUTIME_ID), wall0 = seconds(CLOCK_MONOTONIC);
      for (int i = 0; i < repeats; ++i) call();
      finish();
      const double used = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu0;
      spent += used;
      cpu = std::min(cpu, used / repeats);
      wall = std::min(wall, (seconds(CLOCK_MONOTONIC) - wall0) / repeats);
      if (used < 2e-3) repeats *= 4;
    }
    std::printf("%-34s %6.0f calls  cpu %9.1f us  wall %9.1f us", name, calls, 1e6 * cpu,
                1e6 * wall);
    if (flops > 0) std::printf("  %6.1f GFLOP/s (cpu)", flops / cpu * 1e-9);
    if (bytes > 0) std::printf("  %6.1f GB/s (wall)", bytes / wall * 1e-9);
    std::printf("\n");
    cpu_ += calls * cpu;
    wall_ += calls * wall;
  }
  void total() const { std::printf("step: cpu %.1f ms, wall %.1f ms\n", 1e3 * cpu_, 1e3 * wall_); }

 private:
  std::unique_ptr<Device> device_;
  DType type_;
  std::vector<Buffer> buffers_;
  double cpu_ = 0, wall_ = 0;
};

void products(Bench& b, const Model& m) {
  struct Product {
    const char* name;
    int64_t in, out;
    bool gelu;
  };
  const int64_t rows = m.rows();
  const auto depth = static_cast<double>(m.depth);
  for (const Product& p :
       {Product{"qkv", m.dim, 3 * m.dim, false}, Product{"proj", m.dim, m.dim, false},
        Product{"fc1", m.dim, m.mlp, true}, Product{"fc2", m.mlp, m.dim, false}}) {
    const TensorView x = b.working({rows, p.in}), w = b.working({p.out, p.in}),
                     bias = b.working({p.out}), y = b.working({rows, p.out}),
                     pre = b.working({rows, std::max(p.in, p.out)}), dw = b.acc({p.out, p.in}),
                     db = b.acc({p.out});
    const double flops = 2.0 * static_cast<double>(rows * p.in * p.out);
    const std::string name = p.name;
    b((name + " forward").c_str(), depth, flops, 0, [&] {
      if (p.gelu) b.k().linear_gelu(x, w, bias, pre, y, b.s());
      else b.k().linear(x, w, bias, y, b.s());
    });
    b((name + " backward input").c_str(), depth, flops, 0, [&] {
      if (name == "fc2") b.k().linear_backward_input_gelu(y, w, pre, x, b.s());
      else b.k().linear_backward_input(y, w, x, b.s());
    });
    b((name + " backward weight").c_str(), depth, flops, 0,
      [&] { b.k().linear_backward_weight(y, x, dw, db, b.s()); });
  }
}

void block(Bench& b, const Model& m) {
  const int64_t rows = m.rows(), dim = m.dim / m.heads;
  const auto depth = static_cast<double>(m.depth);
  const TensorView qkv = b.working({m.batch, m.tokens, 3, m.heads, dim}),
                   out = b.working({m.batch, m.tokens, m.heads, dim}),
                   lse = b.acc({m.batch, m.heads, m.tokens}),
                   dqkv = b.working({m.batch, m.tokens, 3, m.heads, dim});
  const double product = 2.0 * static_cast<double>(rows * m.tokens * m.dim);
  b("attention", depth, 2 * product, 0, [&] { b.k().attention(qkv, {}, out, lse, b.s()); });
  b("attention backward", depth, 5 * product, 0,
    [&] { b.k().attention_backward(out, qkv, {}, out, lse, dqkv, b.s()); });
  const TensorView x = b.working({rows, m.dim}), y = b.working({rows, m.dim}),
                   h = b.working({rows, m.dim}), gamma = b.working({m.dim}), mean = b.acc({rows}),
                   rstd = b.acc({rows}), sum = b.acc({m.dim}), sum2 = b.acc({m.dim});
  const double bytes = static_cast<double>(x.bytes());
  b("layer norm", 2 * depth + 1, 0, 2 * bytes,
    [&] { b.k().layer_norm(x, gamma, gamma, 1e-6, y, mean, rstd, b.s()); });
  b("layer norm backward", 2 * depth + 1, 0, 4 * bytes,
    [&] { b.k().layer_norm_backward(h, x, gamma, mean, rstd, y, y, sum, sum2, b.s()); });
  b("residual", 0, 0, 3 * bytes, [&] { b.k().residual(x, h, {}, {}, {}, y, b.s()); });
  b("residual + layer norm", 0, 0, 4 * bytes, [&] {
    b.k().residual_layer_norm(x, h, gamma, {}, {}, gamma, gamma, 1e-6, y,
                              qkv.slice_flat(0, x.elements()).reshaped(x.shape), mean, rstd, b.s());
  });
  b("residual (bias)", 2 * depth, 0, 3 * bytes,
    [&] { b.k().residual(x, h, gamma, {}, {}, y, b.s()); });
  b("residual backward (bias)", 2 * depth, 0, 2 * bytes,
    [&] { b.k().residual_backward(x, {}, gamma, {}, {}, y, sum, {}, b.s()); });
  const TensorView pre = b.working({rows, m.mlp}), act = b.working({rows, m.mlp});
  b("gelu", 0, 0, 2 * static_cast<double>(pre.bytes()), [&] { b.k().gelu(pre, act, b.s()); });
}

void ends(Bench& b, const Model& m) {
  const int64_t patches = m.tokens - 1;
  const TensorView tokens = b.working({m.batch, patches, m.dim}), token = b.working({m.dim}),
                   position = b.working({m.tokens, m.dim}),
                   x = b.working({m.batch, m.tokens, m.dim}), dtoken = b.acc({m.dim}),
                   dposition = b.acc({m.tokens, m.dim}),
                   pixels = b.working({m.batch * patches, m.patch_elements}),
                   w = b.working({m.dim, m.patch_elements}), dw = b.acc({m.dim, m.patch_elements});
  const double flops = 2.0 * static_cast<double>(pixels.elements() * m.dim);
  b("patch embedding", 1, flops, 0, [&] {
    b.k().linear(pixels, w, token, tokens.reshaped({m.batch * patches, m.dim}), b.s());
  });
  b("patch embedding backward", 1, flops, 0, [&] {
    b.k().linear_backward_weight(tokens.reshaped({m.batch * patches, m.dim}), pixels, dw, dtoken,
                                 b.s());
  });
  b("position", 1, 0, 2 * static_cast<double>(x.bytes()),
    [&] { b.k().add_position(tokens, token, position, x, b.s()); });
  b("position backward", 1, 0, 2 * static_cast<double>(x.bytes()),
    [&] { b.k().add_position_backward(x, tokens, dtoken, dposition, b.s()); });
  const TensorView pooled = b.working({m.batch, m.dim}), head = b.working({m.classes, m.dim}),
                   logits = b.working({m.batch, m.classes}), dhead = b.acc({m.classes, m.dim}),
                   max = b.acc({m.batch}), sums = b.acc({m.batch, 3}),
                   labels = b.tensor({m.batch}, DType::i32);
  Targets targets;
  targets.labels = labels;
  targets.classes = m.classes;
  b("head", 1, 0, 0, [&] {
    b.k().pool(x, false, pooled, b.s());
    b.k().linear(pooled, head, {}, logits, b.s());
    b.k().logits_max(logits, 0, m.classes, max, b.s());
    b.k().cross_entropy_sums(logits, 0, targets, max, sums, b.s());
    b.k().cross_entropy_backward(logits, 0, targets, max, sums, 1, nullptr, logits, b.s());
    b.k().linear_backward_input(logits, head, pooled, b.s());
    b.k().linear_backward_weight(logits, pooled, dhead, {}, b.s());
    b.k().pool_backward(pooled, false, x, b.s());
  });
}

void optimizer(Bench& b, const Model& m) {
  const int64_t n = m.parameters;
  const TensorView g = b.acc({n}), master = b.acc({n}), first = b.acc({n}), second = b.acc({n}),
                   weights = b.working({n}), slots = b.tensor({4}, DType::f64),
                   bad = b.tensor({1}, DType::i32);
  std::memset(second.data, 0, second.bytes());
  const std::vector<NormPiece> pieces = {{0, n, 0}};
  const std::vector<Range> decayed = {{0, n / 2}};
  StepState state;
  state.multiplier = 1;
  state.inputs.learning_rate = 1e-6;
  b("gradients to zero", 1, 0, static_cast<double>(g.bytes()), [&] { b.k().fill(g, 0, b.s()); });
  b("sum of squares", 1, 0, static_cast<double>(g.bytes()),
    [&] { b.k().sum_squares(g, pieces, slots, bad, b.s()); });
  b("adamw", 1, 0, 7 * static_cast<double>(g.bytes()) + static_cast<double>(weights.bytes()),
    [&] { b.k().adamw(g, master, first, second, weights, decayed, AdamW{}, &state, b.s()); });
}

void overhead(Bench& b) {
  const TensorView t = b.working({8});
  b("call of a kernel of 8 elements", 0, 0, 0, [&] { b.k().add(t, t, t, b.s()); });
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const Model& model = argc > 2 && std::string(argv[2]) == "small" ? kSmall : kTiny;
  DType type = DType::f32;
  for (DType each : {DType::f16, DType::bf16, DType::f64})
    if (argc > 3 && argv[3] == name_of(each)) type = each;
  Bench bench(threads, type);
  products(bench, model);
  block(bench, model);
  ends(bench, model);
  optimizer(bench, model);
  overhead(bench);
  bench.total();
  return 0;
}
