// What the plan counts is what the model uses: neither more, nor outside, nor too little.
#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "harness.hpp"

namespace voltapile::test {
namespace {

Architecture architecture() {
  Deck deck = small_deck();
  deck.model.depth = 5;
  deck.model.layer_scale = 0.1;
  deck.model.qk_norm = true;
  return make_architecture(deck);
}

size_t sum_of_saved(const Architecture& a, const ChunkShape& shape, const Sizes& sizes) {
  size_t bytes = 0;
  for (int l = shape.first_layer; l < shape.end_layer; ++l)
    bytes += total_bytes(saved_tensors(a, a.layers[static_cast<size_t>(l)], sizes));
  return bytes;
}

TEST(ChunkBytes, AreTheSumOfTheListsWithoutRecomputation) {
  const Architecture a = architecture();
  const size_t boundary = total_bytes({boundary_tensor(a, {.micro = 3})});
  for (const Recompute recompute : {Recompute::none, Recompute::selective}) {
    const Sizes sizes{.micro = 3, .recompute = recompute};
    EXPECT_EQ(chunk_bytes(a, {0, 7}, sizes, false).saved, sum_of_saved(a, {0, 7}, sizes));
    // The first block of a later chunk reads the boundary activation instead of a copy.
    EXPECT_EQ(chunk_bytes(a, {2, 4}, sizes, false).saved,
              sum_of_saved(a, {2, 4}, sizes) - boundary);
  }
}

TEST(ChunkBytes, AreOneInputASegmentWithRecomputation) {
  const Architecture a = architecture();
  const Sizes sizes{.micro = 3, .recompute = Recompute::layers};
  const size_t boundary = total_bytes({boundary_tensor(a, sizes)});
  const size_t head = total_bytes(saved_tensors(a, a.layers.back(), sizes));
  EXPECT_EQ(chunk_bytes(a, {0, 7, 5}, sizes, false).saved, boundary + head);
  EXPECT_EQ(chunk_bytes(a, {0, 7, 1}, sizes, false).saved, 5 * boundary + head);
  EXPECT_EQ(chunk_bytes(a, {1, 6, 2}, sizes, false).saved, 2 * boundary);
  EXPECT_EQ(chunk_bytes(a, {1, 6, 5}, sizes, false).saved, 0u);
}

TEST(ChunkBytes, AreWorkspaceOnlyInEvaluation) {
  const Architecture a = architecture();
  const ChunkBytes bytes = chunk_bytes(a, {0, 7, 0, false}, {.micro = 3}, false);
  EXPECT_EQ(bytes.saved, 0u);
  EXPECT_EQ(bytes.deferred, 0u);
  EXPECT_GT(bytes.workspace, 0u);
  EXPECT_LT(bytes.workspace, chunk_bytes(a, {0, 7}, {.micro = 3}, false).saved);
}

TEST(ChunkBytes, DeferNothingUnlessBackwardIsSplit) {
  const Architecture a = architecture();
  EXPECT_EQ(chunk_bytes(a, {0, 7}, {.micro = 3}, false).deferred, 0u);
  EXPECT_GT(chunk_bytes(a, {0, 7}, {.micro = 3}, true).deferred, 0u);
}

// Memory with known bytes around it. Device memory starts as 0xff, so that a byte which is still
// 0xff was not written (a tensor of NaN would be found by every other test).
class Fenced {
 public:
  explicit Fenced(size_t bytes) : memory_(bytes + 2 * kFence + 256, std::byte{0xff}) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kFence;
    begin_ = memory_.data() + kFence + (256 - address % 256) % 256;
    end_ = begin_ + bytes;
  }
  std::byte* data() { return begin_; }
  bool fences_hold() const {
    const auto untouched = [](std::byte b) { return b == std::byte{0xff}; };
    return std::all_of(memory_.data(), static_cast<const std::byte*>(begin_), untouched) &&
           std::all_of(static_cast<const std::byte*>(end_), memory_.data() + memory_.size(),
                       untouched);
  }
  // The last written byte is in the last 256-byte line.
  bool used_to_the_end() const {
    const std::byte* last = end_;
    while (last > begin_ && last[-1] == std::byte{0xff}) --last;
    return end_ - last < 256;
  }

 private:
  static constexpr size_t kFence = 4096;
  std::vector<std::byte> memory_;
  std::byte *begin_, *end_;
};

struct Use {
  const char* name;
  ChunkShape shape;
  Recompute recompute;
  bool split;
  bool rebuild_attention = false;
};

void PrintTo(const Use& use, std::ostream* out) { *out << use.name; }

class ChunkMemoryUse : public testing::TestWithParam<Use> {};

TEST_P(ChunkMemoryUse, StaysInsideWhatIsCounted) {
  const Use& use = GetParam();
  const Architecture a = architecture();
  const Sizes sizes{
      .micro = 3, .recompute = use.recompute, .rebuild_attention = use.rebuild_attention};
  const auto solo = make_solo();
  const auto device = make_cpu_device(1);
  Stream& stream = device->stream(Lane::compute);
  ModelContext context{&a, &device->kernels(), &stream, solo.get(), sizes};
  context.pixel_mean = {0.5, 0.5, 0.5};
  context.pixel_std = {0.25, 0.25, 0.25};
  ChunkModel chunk(context, use.shape);
  const ChunkBytes bytes = chunk_bytes(a, use.shape, sizes, use.split);
  Fenced saved(bytes.saved), deferred(bytes.deferred), workspace(bytes.workspace);
  const Tensor boundary = boundary_tensor(a, sizes);
  Fenced output(boundary.bytes()), input_gradient(boundary.bytes());
  std::vector<float> input(static_cast<size_t>(boundary.shape.elements()), 0.5F);
  input[1] = 1;
  std::vector<float> weights(static_cast<size_t>(chunk.layout().elements), 0.1F);
  std::vector<float> gradients(weights.size(), 0.0F);
  Batch batch = random_batch(a, 3);
  double loss = 0;
  StepState state;

  ChunkMemory memory;
  memory.weights = {weights.data(), DType::f32, {chunk.layout().elements}};
  memory.gradients = {gradients.data(), DType::f32, {chunk.layout().elements}};
  memory.saved = saved.data();
  memory.deferred = use.split ? deferred.data() : nullptr;
  memory.workspace = workspace.data();
  if (use.shape.first_layer > 0) {
    memory.input = {input.data(), DType::f32, boundary.shape};
    memory.input_gradient = {input_gradient.data(), DType::f32, boundary.shape};
  }
  if (use.shape.end_layer < 7) {
    memory.output = {output.data(), DType::f32, boundary.shape};
    memory.output_gradient = {input.data(), DType::f32, boundary.shape};
  }
  memory.pictures = {batch.pictures.data(), DType::u8, {3, 3, 8, 8}};
  memory.targets.labels = {batch.labels.data(), DType::i32, {3}};
  memory.targets.classes = a.model.classes;
  MicroStep step;
  step.state = &state;
  step.valid = 3;
  step.loss = {&loss, DType::f64, {1}};

  chunk.forward(step, memory);
  if (use.shape.training) {
    if (use.shape.segment_layers != 0) chunk.recompute(step, memory);
    if (use.split) {
      chunk.backward_input(step, memory);
      chunk.backward_weight(step, memory);
    } else {
      chunk.backward(step, memory);
    }
  }
  device->wait_on_host(device->record(stream));
  EXPECT_TRUE(saved.fences_hold());
  EXPECT_TRUE(deferred.fences_hold());
  EXPECT_TRUE(workspace.fences_hold());
  EXPECT_TRUE(output.fences_hold());
  EXPECT_TRUE(input_gradient.fences_hold());
  EXPECT_TRUE(saved.used_to_the_end());
  EXPECT_TRUE(deferred.used_to_the_end());
}

INSTANTIATE_TEST_SUITE_P(
    Uses, ChunkMemoryUse,
    testing::Values(Use{"whole_model", {0, 7}, Recompute::none, false},
                    Use{"whole_model_split", {0, 7}, Recompute::none, true},
                    Use{"whole_model_selective_split", {0, 7}, Recompute::selective, true},
                    Use{"whole_model_rebuilt", {0, 7}, Recompute::none, false, true},
                    Use{"whole_model_rebuilt_split", {0, 7}, Recompute::none, true, true},
                    Use{"segments_of_2", {0, 7, 2}, Recompute::layers, false},
                    Use{"segments_of_2_split", {0, 7, 2}, Recompute::layers, true},
                    Use{"first_chunk", {0, 3}, Recompute::none, false},
                    Use{"middle_chunk_split", {2, 5}, Recompute::none, true},
                    Use{"last_chunk_in_one_segment", {3, 7, 4}, Recompute::layers, false},
                    Use{"evaluation", {0, 7, 0, false}, Recompute::none, false},
                    Use{"evaluation_of_a_middle_chunk", {2, 5, 0, false}, Recompute::none, false}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace voltapile::test
