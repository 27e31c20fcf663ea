// Which samples lose which branch is a function of the run's seed, the branch and the sample.
#include <gtest/gtest.h>

#include "voltapile/base/philox.hpp"

#include "harness.hpp"

namespace voltapile::test {
namespace {

constexpr int64_t kSamples = 16;
constexpr int64_t kFirstSample = 1000, kOffset = 48;

// One of three blocks alone (the last by default), on double inputs.
struct OneBlock {
  explicit OneBlock(bool training, int layer = 3) : shape{layer, layer + 1, 0, training} {
    Deck deck = small_deck();
    deck.model.depth = 3;
    deck.model.drop_path = 0.5;
    a = make_architecture(deck);
    sizes = {.micro = kSamples, .working = DType::f64};
    ModelContext context{&a, &device->kernels(), &device->stream(Lane::compute), solo.get(), sizes};
    context.seed = kSeed;
    ChunkModel chunk(context, shape);
    const ChunkBytes bytes = chunk_bytes(a, shape, sizes, false);
    saved = device->allocate(bytes.saved, "saved");
    workspace = device->allocate(bytes.workspace, "workspace");
    const Shape boundary = boundary_tensor(a, sizes).shape;
    std::vector<double> weights;
    for (int64_t i = 0; i < chunk.layout().elements; ++i)
      weights.push_back(0.3 * truncated_normal(5, 0, static_cast<uint64_t>(i)));
    for (int64_t i = 0; i < boundary.elements(); ++i)
      input.push_back(truncated_normal(5, 1, static_cast<uint64_t>(i)));
    output.resize(input.size());

    StepState state;
    state.inputs.first_sample = kFirstSample;
    MicroStep step;
    step.state = &state;
    step.sample_offset = kOffset;
    ChunkMemory memory;
    memory.weights = {weights.data(), DType::f64, {chunk.layout().elements}};
    memory.saved = saved.data();
    memory.workspace = workspace.data();
    memory.input = {input.data(), DType::f64, boundary};
    memory.output = {output.data(), DType::f64, boundary};
    chunk.forward(step, memory);
    device->wait_on_host(device->record(device->stream(Lane::compute)));

    const ChunkLayers chunk_layers{layer, layer + 1, 0};
    const TensorLayout layout =
        training ? chunk_saved(a, chunk_layers, sizes) : layer_saved(a, layer, sizes);
    const std::byte* base =
        training ? saved.data()
                 : workspace.data() + chunk_workspace(a, chunk_layers, sizes, false).kept_offset;
    const auto* first =
        reinterpret_cast<const double*>(base + layout.find(layer, "middle")->offset);
    middle.assign(first, first + input.size());
  }
  static constexpr uint64_t kSeed = 21;
  ChunkShape shape;
  Architecture a;
  Sizes sizes;
  std::unique_ptr<Device> device = make_cpu_device(1);
  std::unique_ptr<Communicator> solo = make_solo();
  Buffer saved, workspace;
  std::vector<double> input, middle, output;  // (B, T, C)

  bool is_same(const std::vector<double>& u, const std::vector<double>& v, int64_t sample) const {
    const auto count = a.tokens() * a.model.dim;
    return std::equal(u.begin() + sample * count, u.begin() + (sample + 1) * count,
                      v.begin() + sample * count);
  }
};

bool is_dropped(uint32_t item, int64_t sample, float rate) {
  const auto index = static_cast<uint64_t>(kFirstSample + kOffset + sample);
  return uniform01(random_words(OneBlock::kSeed, Purpose::drop_path, item, index)[0]) < rate;
}

TEST(DropPath, DropsWholeBranchesOfTheSamplesThatTheSeedNames) {
  const OneBlock block(true);
  int attention = 0, mlp = 0;
  for (int64_t s = 0; s < kSamples; ++s) {
    EXPECT_EQ(block.is_same(block.input, block.middle, s), is_dropped(4, s, 0.5F)) << s;
    EXPECT_EQ(block.is_same(block.middle, block.output, s), is_dropped(5, s, 0.5F)) << s;
    attention += is_dropped(4, s, 0.5F);
    mlp += is_dropped(5, s, 0.5F);
  }
  EXPECT_GT(attention, 0);
  EXPECT_LT(attention, kSamples);
  EXPECT_GT(mlp, 0);
  EXPECT_LT(mlp, kSamples);
}

// Each kept branch counts double at a rate of one half, so that its mean stays what it was.
TEST(DropPath, DividesKeptBranchesByTheirProbability) {
  const OneBlock training(true), evaluation(false);
  const int64_t count = training.a.tokens() * training.a.model.dim;
  for (int64_t s = 0; s < kSamples; ++s) {
    for (int64_t i = s * count; i < (s + 1) * count; ++i) {
      const auto at = static_cast<size_t>(i);
      const double branch = evaluation.middle[at] - evaluation.input[at];
      EXPECT_NEAR(training.middle[at] - training.input[at], is_dropped(4, s, 0.5F) ? 0 : 2 * branch,
                  1e-12);
    }
  }
}

TEST(DropPath, GrowsLinearlyFromZeroWithTheBlock) {
  const OneBlock first(true, 1), second(true, 2);
  for (int64_t s = 0; s < kSamples; ++s) {
    EXPECT_FALSE(first.is_same(first.input, first.middle, s)) << s;
    EXPECT_EQ(second.is_same(second.input, second.middle, s), is_dropped(2, s, 0.25F)) << s;
  }
}

TEST(DropPath, IsOffInEvaluation) {
  const OneBlock block(false);
  for (int64_t s = 0; s < kSamples; ++s) {
    EXPECT_FALSE(block.is_same(block.input, block.middle, s)) << s;
    EXPECT_FALSE(block.is_same(block.middle, block.output, s)) << s;
  }
}

}  // namespace
}  // namespace voltapile::test
