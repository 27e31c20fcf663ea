// The parameter list is timm's; shards of all tensor ranks make up each whole tensor; flat layouts
// tile.
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "voltapile/architecture/architecture.hpp"

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

Deck vit(int64_t patch, int64_t dim, int64_t depth, int64_t heads) {
  Deck d = test::sample_deck();
  d.model.image = {224, 224};
  d.model.patch = {patch, patch};
  d.model.dim = dim;
  d.model.depth = depth;
  d.model.heads = heads;
  d.model.mlp = 4 * dim;
  d.model.classes = 1000;
  d.model.pool = Pool::token;
  return d;
}

TEST(Parameters, CountsEqualTimms) {
  // sum(p.numel() for p in timm.create_model(name).parameters())
  EXPECT_EQ(make_architecture(vit(16, 192, 12, 3)).parameter_count(), 5'717'416);
  EXPECT_EQ(make_architecture(vit(16, 384, 12, 6)).parameter_count(), 22'050'664);
  EXPECT_EQ(make_architecture(vit(16, 768, 12, 12)).parameter_count(), 86'567'656);
  EXPECT_EQ(make_architecture(vit(16, 1024, 24, 16)).parameter_count(), 304'326'632);
  EXPECT_EQ(make_architecture(vit(14, 1280, 32, 16)).parameter_count(), 632'045'800);
}

TEST(Parameters, FixedPositionTableIsNotCounted) {
  Deck d = vit(16, 192, 12, 3);
  d.model.position = Position::sine2d;
  EXPECT_EQ(make_architecture(d).parameter_count(), 5'717'416 - 197 * 192);
  EXPECT_EQ(make_architecture(d).frozen_count(), 0);
  d.optimizer.freeze = {"blocks.1?.*", "pos_embed", "norm.*"};  // the table is no parameter
  EXPECT_EQ(make_architecture(d).frozen_count(), 2 * 444'864 + 2 * 192);
}

TEST(Parameters, NamesAndShapesAreTimmsInItsOrder) {
  Deck d = vit(16, 192, 1, 3);
  d.model.qk_norm = true;
  d.model.layer_scale = 1e-5;
  std::vector<std::string> names;
  uint32_t id = 0;
  for (const Layer& layer : make_architecture(d).layers)
    for (const Parameter& p : layer.parameters) {
      EXPECT_EQ(p.id, id++);
      names.push_back(p.name + " " + p.shape.text());
    }
  const std::vector<std::string> expected{"cls_token (1, 1, 192)",
                                          "pos_embed (1, 197, 192)",
                                          "patch_embed.proj.weight (192, 3, 16, 16)",
                                          "patch_embed.proj.bias (192)",
                                          "blocks.0.norm1.weight (192)",
                                          "blocks.0.norm1.bias (192)",
                                          "blocks.0.attn.qkv.weight (576, 192)",
                                          "blocks.0.attn.qkv.bias (576)",
                                          "blocks.0.attn.q_norm.weight (64)",
                                          "blocks.0.attn.q_norm.bias (64)",
                                          "blocks.0.attn.k_norm.weight (64)",
                                          "blocks.0.attn.k_norm.bias (64)",
                                          "blocks.0.attn.proj.weight (192, 192)",
                                          "blocks.0.attn.proj.bias (192)",
                                          "blocks.0.ls1.gamma (192)",
                                          "blocks.0.norm2.weight (192)",
                                          "blocks.0.norm2.bias (192)",
                                          "blocks.0.mlp.fc1.weight (768, 192)",
                                          "blocks.0.mlp.fc1.bias (768)",
                                          "blocks.0.mlp.fc2.weight (192, 768)",
                                          "blocks.0.mlp.fc2.bias (192)",
                                          "blocks.0.ls2.gamma (192)",
                                          "norm.weight (192)",
                                          "norm.bias (192)",
                                          "head.weight (1000, 192)",
                                          "head.bias (1000)"};
  EXPECT_EQ(names, expected);
  d.model.pool = Pool::mean;
  const Architecture mean = make_architecture(d);
  EXPECT_EQ(mean.layers.front().parameters.front().name, "pos_embed");
  EXPECT_EQ(mean.layers.front().parameters.front().shape, Shape({1, 196, 192}));
  EXPECT_EQ(mean.layers.back().parameters.front().name, "fc_norm.weight");
}

TEST(Parameters, OnlyMatricesDecay) {
  const std::set<std::string> decayed{"patch_embed.proj.weight",   "blocks.0.attn.qkv.weight",
                                      "blocks.0.attn.proj.weight", "blocks.0.mlp.fc1.weight",
                                      "blocks.0.mlp.fc2.weight",   "head.weight"};
  Deck d = vit(16, 192, 1, 3);
  d.model.qk_norm = true;
  d.model.layer_scale = 1e-5;
  for (const Layer& layer : make_architecture(d).layers)
    for (const Parameter& p : layer.parameters)
      EXPECT_EQ(p.decay, decayed.contains(p.name)) << p.name;
}

TEST(Parameters, GradientsKnowWhatTensorRanksHoldOfThem) {
  Deck d = vit(16, 192, 1, 3);
  d.model.qk_norm = true;
  d.model.layer_scale = 1e-5;
  std::map<std::string, TensorGradient> kinds;
  for (const Layer& layer : make_architecture(d).layers)
    for (const Parameter& p : layer.parameters) kinds[p.name] = p.tensor_gradient;
  const auto in_rows = TensorGradient::partial_if_sequence;
  for (const char* name : {"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias",
                           "attn.proj.bias", "mlp.fc2.bias", "ls1.gamma", "ls2.gamma"})
    EXPECT_EQ(kinds.at(std::string("blocks.0.") + name), in_rows) << name;
  for (const char* name : {"q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias"})
    EXPECT_EQ(kinds.at(std::string("blocks.0.attn.") + name), TensorGradient::partial) << name;
  for (const char* name : {"cls_token", "pos_embed", "patch_embed.proj.weight", "norm.weight",
                           "norm.bias", "head.weight", "blocks.0.attn.qkv.bias"})
    EXPECT_EQ(kinds.at(name), TensorGradient::complete) << name;
}

// Every element of the whole tensor is held by exactly one tensor rank (all of them when it is
// replicated), every local element stands for at most one, and what is left over is class padding.
TEST(Placement, ShardsOfAllTensorRanksCoverEachTensorOnce) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Deck d = test::random_deck(seed);
    const int tp = d.parallel.tensor;
    const Architecture a = make_architecture(d);
    for (const Layer& layer : a.layers)
      for (const Parameter& p : layer.parameters) {
        const int64_t columns = p.shape.elements() / p.shape[0];
        const Shape local = local_shape(p, tp);
        const int64_t local_columns = local.elements() / local[0];
        std::vector<int> covered(static_cast<size_t>(p.shape.elements()), 0);
        for (int rank = 0; rank < tp; ++rank) {
          std::vector<int> used(static_cast<size_t>(local.elements()), 0);
          for (const Rectangle& r : placement(p, tp, rank))
            for (int64_t i = 0; i < r.rows; ++i)
              for (int64_t j = 0; j < r.columns; ++j) {
                ++covered.at(static_cast<size_t>((r.whole_row + i) * columns + r.whole_column + j));
                ++used.at(
                    static_cast<size_t>((r.local_row + i) * local_columns + r.local_column + j));
              }
          for (size_t i = 0; i < used.size(); ++i) {
            ASSERT_LE(used[i], 1) << p.name;
            if (p.split != Split::classes) { ASSERT_EQ(used[i], 1) << p.name; }
          }
        }
        const int expected = p.split == Split::replicated ? tp : 1;
        for (int count : covered) ASSERT_EQ(count, expected) << p.name << " tp " << tp;
      }
  }
}

TEST(Placement, QkvShardsHoldWholeHeadsOfQueryKeyAndValue) {
  Deck d = test::sample_deck();  // dim 32, 4 heads of 8
  const Architecture a = make_architecture(d);
  const Parameter* qkv = nullptr;
  for (const Parameter& p : a.layers[1].parameters)
    if (p.name == "blocks.0.attn.qkv.weight") qkv = &p;
  ASSERT_NE(qkv, nullptr);
  EXPECT_EQ(local_shape(*qkv, 2), Shape({48, 32}));
  const auto runs = placement(*qkv, 2, 1);
  ASSERT_EQ(runs.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(runs[static_cast<size_t>(i)].local_row, 16 * i);
    EXPECT_EQ(runs[static_cast<size_t>(i)].whole_row, 32 * i + 16);
    EXPECT_EQ(runs[static_cast<size_t>(i)].rows, 16);
  }
}

TEST(Placement, ClassesThatDoNotDivideArePaddedAtTheEnd) {
  Deck d = test::sample_deck();
  d.model.classes = 5;  // tp 4: 2, 2, 1, 0 rows of 2
  const Architecture a = make_architecture(d);
  const Parameter& bias = a.layers.back().parameters.back();
  EXPECT_EQ(local_shape(bias, 4), Shape({2}));
  EXPECT_EQ(placement(bias, 4, 1).front().rows, 2);
  EXPECT_EQ(placement(bias, 4, 2).front().rows, 1);
  EXPECT_TRUE(placement(bias, 4, 3).empty());
}

TEST(FlatLayout, TilesWithoutOverlapAlignedAndInOrder) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Deck d = test::random_deck(seed);
    const Architecture a = make_architecture(d);
    const int layers = static_cast<int>(a.layers.size());
    const int multiple = 64 * d.parallel.data;
    const FlatLayout layout = flat_layout(a, 0, layers, d.parallel.tensor, multiple);
    int64_t end = 0;
    size_t next = 0;
    for (int l = 0; l < layers; ++l)
      for (size_t i = 0; i < a.layers[static_cast<size_t>(l)].parameters.size(); ++i) {
        const FlatEntry& entry = layout.entries.at(next++);
        EXPECT_EQ(entry.layer, l);
        EXPECT_EQ(entry.parameter, static_cast<int>(i));
        EXPECT_EQ(entry.offset % 64, 0);
        EXPECT_GE(entry.offset, end);
        EXPECT_LT(entry.offset - end, 64);
        end = entry.offset + entry.elements;
      }
    EXPECT_EQ(next, layout.entries.size());
    EXPECT_GE(layout.elements, end);
    EXPECT_LT(layout.elements - end, multiple);
    EXPECT_EQ(layout.elements % multiple, 0);
  }
}

}  // namespace
}  // namespace voltapile
