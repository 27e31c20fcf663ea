// Every layer's backward against central differences of its forward, in double.
#include <cmath>
#include <cstdlib>
#include <functional>

#include <gtest/gtest.h>

#include "voltapile/base/philox.hpp"

#include "harness.hpp"

namespace voltapile::test {
namespace {

constexpr double kStep = 1e-5;
constexpr double kTolerance = 2e-8;  // of the layer's largest; the differences are good to 1e-9

struct Case {
  std::string name;
  std::function<void(Deck&)> change = [](Deck&) {};
  std::function<void(Options&)> options = [](Options&) {};
  bool soft = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Of each parameter every third element (3 divides no row length), or all in a full run.
bool is_tested(size_t element) {
  static const bool full = std::getenv("VOLTAPILE_FULL") != nullptr;
  return full || element % 3 == 0;
}

class Gradient : public testing::TestWithParam<Case> {};

std::vector<Batch> two_micros(const Architecture& a, const Options& options, bool soft) {
  const auto make = soft ? soft_batch : random_batch;
  return {make(a, options.micro, 11), make(a, options.micro, 12)};
}

// d loss / d parameter; a table that is not trained has none.
TEST_P(Gradient, MatchesFiniteDifferences) {
  Deck deck = small_deck();
  GetParam().change(deck);
  const Architecture a = make_architecture(deck);
  Options options;
  GetParam().options(options);
  const std::vector<Batch> micros = two_micros(a, options, GetParam().soft);
  Values weights = random_weights(a);
  const Outcome outcome = run_solo(a, options, weights, micros);

  const auto solo = make_solo();
  Runner runner(a, options, *solo);
  const auto loss_with = [&](double& weight, double value) {
    const double before = weight;
    weight = value;
    runner.set_weights(weights);
    weight = before;
    return runner.forward(micros);
  };
  Values differences = outcome.gradients;
  for (const Layer& layer : a.layers) {
    for (const Parameter& p : layer.parameters) {
      for (size_t i = 0; i < weights[p.name].size(); ++i) {
        if (!is_tested(i)) continue;
        double& weight = weights[p.name][i];
        const double slope =
            (loss_with(weight, weight + kStep) - loss_with(weight, weight - kStep)) / (2 * kStep);
        differences[p.name][i] = p.trained ? slope : 0;
      }
    }
  }
  const Difference d = largest_difference(a, outcome.gradients, differences);
  EXPECT_LT(d.value, kTolerance) << d.where;
}

std::vector<Case> cases() {
  const auto every_option = [](Deck& d) {
    d.model.layer_scale = 0.1;
    d.model.qk_norm = true;
    d.model.drop_path = 0.4;
  };
  return {
      {"plain"},
      {"class_token", [](Deck& d) { d.model.pool = Pool::token; }},
      {"sine_position", [](Deck& d) { d.model.position = Position::sine2d; }},
      {"sine_position_with_class_token",
       [](Deck& d) {
         d.model.position = Position::sine2d;
         d.model.pool = Pool::token;
       }},
      {"not_square_one_channel",
       [](Deck& d) {
         d.model.image = {6, 20};
         d.model.patch = {3, 5};
         d.model.channels = 1;
       }},
      {"without_qkv_bias", [](Deck& d) { d.model.qkv_bias = false; }},
      {"layer_scale", [](Deck& d) { d.model.layer_scale = 0.1; }},
      {"qk_norm", [](Deck& d) { d.model.qk_norm = true; }},
      {"drop_path", [](Deck& d) { d.model.drop_path = 0.4; }},
      {"label_smoothing", [](Deck& d) { d.loss.label_smoothing = 0.1; }},
      {"soft_targets", [](Deck&) {}, [](Options&) {}, true},
      {"smoothed_soft_targets", [](Deck& d) { d.loss.label_smoothing = 0.1; }, [](Options&) {},
       true},
      {"every_option", every_option},
      {"every_option_selective", every_option,
       [](Options& o) { o.recompute = Recompute::selective; }},
      {"every_option_split", every_option, [](Options& o) { o.split_backward = true; }},
      {"every_option_split_selective", every_option,
       [](Options& o) {
         o.split_backward = true;
         o.recompute = Recompute::selective;
       }},
      {"every_option_split_recomputed_in_two_chunks", every_option,
       [](Options& o) {
         o.split_backward = true;
         o.recompute = Recompute::layers;
         o.segment_layers = 1;
         o.cuts = {2};
       }},
  };
}

INSTANTIATE_TEST_SUITE_P(Layers, Gradient, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// Powers of two change exponents only.
TEST(LossScale, MultipliesEveryGradient) {
  const Architecture a = make_architecture(small_deck());
  const Values weights = random_weights(a);
  Options options;
  const std::vector<Batch> micros = two_micros(a, options, false);
  const Outcome plain = run_solo(a, options, weights, micros);
  options.loss_scale = 1024;
  Outcome scaled = run_solo(a, options, weights, micros);
  EXPECT_EQ(scaled.loss, plain.loss);
  for (auto& [name, values] : scaled.gradients)
    for (double& value : values) value /= 1024;
  EXPECT_EQ(scaled.gradients, plain.gradients);
}

// A chunk in the middle of a model: the gradient that it hands to the chunk before.
TEST(BlockChunk, InputGradientMatchesFiniteDifferences) {
  Deck deck = small_deck();
  deck.model.depth = 4;
  deck.model.layer_scale = 0.1;
  deck.model.qk_norm = true;
  deck.model.drop_path = 0.4;
  const Architecture a = make_architecture(deck);
  const Sizes sizes{.micro = 2, .working = DType::f64};
  const auto solo = make_solo();
  const auto device = make_cpu_device(1);
  Stream& stream = device->stream(Lane::compute);
  ModelContext context{&a, &device->kernels(), &stream, solo.get(), sizes};
  const ChunkShape shape{2, 4};
  ChunkModel chunk(context, shape);

  const ChunkBytes bytes = chunk_bytes(a, shape, sizes, false);
  const Buffer saved = device->allocate(bytes.saved, "saved");
  const Buffer workspace = device->allocate(bytes.workspace, "workspace");
  const Shape boundary = boundary_tensor(a, sizes).shape;
  const auto random = [&](uint32_t item, int64_t count) {
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i)
      values.push_back(truncated_normal(5, item, static_cast<uint64_t>(i)));
    return values;
  };
  std::vector<double> weights = random(0, chunk.layout().elements);
  for (double& weight : weights) weight *= 0.3;
  std::vector<double> gradients(weights.size(), 0.0);
  std::vector<double> input = random(1, boundary.elements());
  std::vector<double> direction = random(2, boundary.elements());  // d loss / d output
  std::vector<double> output(input.size()), input_gradient(input.size());

  StepState state;
  MicroStep step;
  step.state = &state;
  const auto view = [](std::vector<double>& values, Shape extents) {
    return TensorView{values.data(), DType::f64, extents};
  };
  ChunkMemory memory;
  memory.weights = view(weights, {chunk.layout().elements});
  memory.gradients = view(gradients, {chunk.layout().elements});
  memory.saved = saved.data();
  memory.workspace = workspace.data();
  memory.input = view(input, boundary);
  memory.output = view(output, boundary);
  memory.output_gradient = view(direction, boundary);
  memory.input_gradient = view(input_gradient, boundary);
  const auto finish = [&] { device->wait_on_host(device->record(stream)); };
  const auto loss = [&] {
    chunk.forward(step, memory);
    finish();
    double sum = 0;
    for (size_t i = 0; i < output.size(); ++i) sum += output[i] * direction[i];
    return sum;
  };

  loss();
  const std::vector<double> direction_before = direction;
  chunk.backward(step, memory);
  finish();
  EXPECT_EQ(direction, direction_before) << "backward wrote to its output gradient";
  for (size_t i = 0; i < input.size(); ++i) {
    const double x = input[i];
    input[i] = x + kStep;
    const double above = loss();
    input[i] = x - kStep;
    const double below = loss();
    input[i] = x;
    EXPECT_NEAR(input_gradient[i], (above - below) / (2 * kStep), 1e-7) << "element " << i;
  }
}

}  // namespace
}  // namespace voltapile::test
