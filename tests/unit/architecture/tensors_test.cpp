// What layers and chunks keep and need, and their FLOPs.
#include <gtest/gtest.h>

#include "voltapile/architecture/architecture.hpp"

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

Sizes sizes_of(const Deck& d) {
  return {.micro = d.batch.micro,
          .tp = d.parallel.tensor,
          .sequence = d.parallel.tensor > 1,
          .working = d.precision.type,
          .recompute = d.memory.recompute};
}

TEST(Flops, WholeModelIsSixTimesParametersTimesTokensPlusAttention) {
  Deck d = test::sample_deck();  // ViT-32B
  d.model.image = {224, 224};
  d.model.patch = {14, 14};
  d.model.dim = 8192;
  d.model.depth = 40;
  d.model.heads = 64;
  d.model.mlp = 32768;
  d.model.classes = 21841;
  const Architecture a = make_architecture(d);
  double total = 0;
  for (const Layer& layer : a.layers) {
    const Flops f = flops(a, layer, 1);
    total += f.forward + f.backward_input + f.backward_weight;
  }
  const double tokens = 256, dim = 8192;
  // The head works on one pooled token of each sample.
  const double head = 21841 * (dim + 1);
  const double blocks = static_cast<double>(a.parameter_count()) - head;
  const double expected = 6 * blocks * tokens + 6 * head + 3 * 40 * 4 * tokens * tokens * dim;
  EXPECT_NEAR(total / expected, 1, 1e-3);
}

TEST(Flops, ForwardOfABlockIsTwoNTPlusFourTTC) {
  Deck d = test::sample_deck();
  d.model.dim = 4096;
  d.model.mlp = 16384;
  const Architecture a = make_architecture(d);
  int64_t parameters = 0;
  for (const Parameter& p : a.layers[1].parameters) parameters += p.shape.elements();
  const double tokens = 16, samples = 3;
  const double expected =
      samples * (2 * static_cast<double>(parameters) * tokens + 4 * tokens * tokens * 4096);
  EXPECT_NEAR(flops(a, a.layers[1], 3).forward / expected, 1, 1e-3);
}

TEST(Tensors, TensorParallelRanksHoldTheirShareOfHeadsMlpAndRows) {
  Deck d = test::sample_deck();  // T 16, C 32, mlp 64, H 4
  Sizes s = sizes_of(d);
  s.tp = 2;
  s.sequence = true;
  const Architecture a = make_architecture(d);
  const auto shape = [&](std::string_view name) {
    for (const Tensor& t : saved_tensors(a, a.layers[1], s))
      if (t.name == name) return t.shape;
    return Shape{};
  };
  EXPECT_EQ(shape("input"), Shape({16, 32}));  // 2 samples * 16 tokens / 2
  EXPECT_EQ(shape("norm2"), Shape({16, 32}));
  EXPECT_EQ(shape("qkv"), Shape({32, 48}));
  EXPECT_EQ(shape("attention"), Shape({32, 16}));
  EXPECT_EQ(shape("lse"), Shape({2, 2, 16}));
  EXPECT_EQ(shape("fc1"), Shape({32, 32}));
  s.sequence = false;
  EXPECT_EQ(shape("input"), Shape({32, 32}));
  EXPECT_EQ(boundary_tensor(a, s).shape, Shape({32, 32}));
}

TEST(Tensors, SelectiveRecomputationDropsNormOutputsAndGelu) {
  Deck d = test::sample_deck();
  Sizes s = sizes_of(d);
  const Architecture a = make_architecture(d);
  const size_t all = total_bytes(saved_tensors(a, a.layers[1], s));
  s.recompute = Recompute::selective;
  size_t dropped = 0;
  dropped += 2 * 32 * 32 * sizeof(float);  // norm1, norm2
  dropped += 32 * 64 * sizeof(float);      // gelu
  EXPECT_EQ(all - total_bytes(saved_tensors(a, a.layers[1], s)), dropped);
}

TEST(Tensors, StatisticsStayInTheAccumulateType) {
  Deck d = test::sample_deck();
  d.model.qk_norm = true;
  Sizes s = sizes_of(d);
  s.working = DType::bf16;
  const Architecture a = make_architecture(d);
  for (const Tensor& t : saved_tensors(a, a.layers[1], s)) {
    const bool statistic = t.name.starts_with("mean") || t.name.starts_with("rstd") ||
                           t.name == "lse" || t.name == "qk_stats";
    EXPECT_EQ(t.dtype, statistic ? DType::f32 : DType::bf16) << t.name;
  }
}

// Tensors of a layout do not overlap, are aligned, and fill its bytes.
void expect_tiles(const TensorLayout& layout) {
  size_t end = 0;
  for (const PlacedTensor& placed : layout.tensors) {
    EXPECT_EQ(placed.offset % 256, 0u);
    EXPECT_GE(placed.offset, end);
    end = placed.offset + placed.tensor.bytes();
    EXPECT_EQ(layout.find(placed.layer, placed.tensor.name), &placed);
  }
  EXPECT_GE(layout.bytes, end);
  EXPECT_LT(layout.bytes, end + 256);
}

TEST(Chunk, LayoutsTileAndSegmentsCoverTheBlocks) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Deck d = test::random_deck(seed);
    const Architecture a = make_architecture(d);
    const Sizes s = sizes_of(d);
    const int layers = static_cast<int>(a.layers.size());
    for (int k = 0; k <= 4; ++k) {
      const ChunkLayers chunk{0, layers, k};
      expect_tiles(chunk_saved(a, chunk, s));
      expect_tiles(chunk_deferred(a, chunk, s));
      int next = 1;
      for (const Segment& segment : segments(a, chunk)) {
        EXPECT_EQ(segment.first_layer, next);
        EXPECT_GT(segment.end_layer, segment.first_layer);
        if (k > 0) { EXPECT_LE(segment.end_layer - segment.first_layer, k); }
        expect_tiles(segment_saved(a, segment, s));
        next = segment.end_layer;
      }
      EXPECT_EQ(next, layers - 1);
    }
    for (int l = 0; l < layers; ++l) {
      expect_tiles(layer_saved(a, l, s));
      expect_tiles(layer_workspace(a, l, s));
    }
  }
}

TEST(Chunk, RecomputationKeepsSegmentInputsAndTheHead) {
  const Deck d = test::sample_deck();  // blocks are layers 1..4, the head is layer 5
  const Architecture a = make_architecture(d);
  const Sizes s = sizes_of(d);
  const TensorLayout whole = chunk_saved(a, {0, 6, 2}, s);
  // Behind the embedding, the first segment's input is nobody's boundary activation.
  EXPECT_NE(whole.find(1, "input"), nullptr);
  EXPECT_NE(whole.find(3, "input"), nullptr);
  EXPECT_EQ(whole.find(2, "input"), nullptr);
  EXPECT_EQ(whole.find(3, "qkv"), nullptr);
  EXPECT_NE(whole.find(5, "logits"), nullptr);
  // Blocks 2..3 alone: the boundary activation is the first segment's input.
  EXPECT_EQ(chunk_saved(a, {3, 5, 2}, s).bytes, 0u);
  EXPECT_EQ(chunk_saved(a, {3, 5, 1}, s).tensors.size(), 1u);
  // The rebuilt tensors have their place in the workspace.
  const size_t with = chunk_workspace(a, {3, 5, 2}, s, true).bytes;
  const size_t without = chunk_workspace(a, {3, 5, 0}, s, true).bytes;
  EXPECT_EQ(with - without, segment_saved(a, {3, 5}, s).bytes);
}

TEST(Chunk, WorkspaceHoldsTheLargestLayer) {
  const Deck d = test::sample_deck();
  const Architecture a = make_architecture(d);
  const Sizes s = sizes_of(d);
  for (const bool training : {true, false}) {
    const ChunkWorkspace w = chunk_workspace(a, {0, 6, 0}, s, training);
    for (int l = 0; l < 6; ++l) {
      EXPECT_LE(w.layer_offset + layer_workspace(a, l, s).bytes, w.bytes);
      if (!training) { EXPECT_LE(w.kept_offset + layer_saved(a, l, s).bytes, w.layer_offset); }
    }
    EXPECT_GE(w.kept_offset, boundary_tensor(a, s).bytes() * (training ? 2 : 1));
  }
}

}  // namespace
}  // namespace voltapile
