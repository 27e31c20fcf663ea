// The learning rate, shards, and who counts what.
#include "voltapile/optim/optim.hpp"

#include <cmath>
#include <map>
#include <numbers>

#include <gtest/gtest.h>

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

Deck::Optimizer optimizer(LearningRateSchedule schedule, int64_t warmup) {
  Deck::Optimizer o = test::sample_deck().optimizer;
  o.lr = 1.0;
  o.min_lr = 0.1;
  o.warmup_steps = warmup;
  o.schedule = schedule;
  return o;
}

TEST(LearningRate, WarmsUpLinearlyFromItsFirstStep) {
  const auto o = optimizer(LearningRateSchedule::cosine, 4);
  for (int64_t step = 0; step < 4; ++step)
    EXPECT_DOUBLE_EQ(learning_rate(o, step, 100), 0.25 * static_cast<double>(step + 1));
  EXPECT_DOUBLE_EQ(learning_rate(o, 4, 100), 1.0);
}

TEST(LearningRate, DecaysToTheMinimumAtTheEndAndStaysThere) {
  const auto cosine = optimizer(LearningRateSchedule::cosine, 10);
  const auto linear = optimizer(LearningRateSchedule::linear, 10);
  EXPECT_NEAR(learning_rate(cosine, 60, 110), 0.55, 1e-12);  // half-way
  EXPECT_NEAR(learning_rate(linear, 60, 110), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(cosine, 35, 110),
              0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi / 4)), 1e-12);
  EXPECT_NEAR(learning_rate(linear, 35, 110), 0.1 + 0.9 * 0.75, 1e-12);
  for (const int64_t step : {110, 111, 1000}) {
    EXPECT_DOUBLE_EQ(learning_rate(cosine, step, 110), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(linear, step, 110), 0.1);
  }
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(LearningRateSchedule::constant, 0), 500, 110), 1.0);
  // A run that is all warm-up has no decay to divide by.
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 10, 10), 0.1);
}

struct World {
  Deck deck;
  Architecture architecture;
  Mesh mesh;
  FlatLayout layout;
};
World random_world(uint64_t seed) {
  World w{test::random_deck(seed), {}, {}, {}};
  w.deck.optimizer.layer_decay = seed % 2 == 0 ? 1 : 0.75;
  if (seed % 3 == 0) w.deck.optimizer.freeze = {"patch_embed*", "blocks.?.norm1.*", "*.fc2.bias"};
  w.architecture = make_architecture(w.deck);
  const auto& p = w.deck.parallel;
  w.mesh = {p.pipeline, p.data, p.tensor};
  w.layout = flat_layout(w.architecture, 0, static_cast<int>(w.architecture.layers.size()),
                         p.tensor, 64 * p.data);
  return w;
}

TEST(Shard, DataRanksOwnEachElementOnce) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const World w = random_world(seed);
    int64_t next = 0;
    for (int rank = 0; rank < w.mesh.dp; ++rank) {
      const Range r = shard(w.layout, 1, w.mesh.dp, rank);
      EXPECT_EQ(r.begin, next);
      EXPECT_EQ(r.begin % 64, 0);
      next = r.end;
      const Range whole = shard(w.layout, 0, w.mesh.dp, rank);
      EXPECT_EQ(whole.begin, 0);
      EXPECT_EQ(whole.end, w.layout.elements);
    }
    EXPECT_EQ(next, w.layout.elements);
  }
}

// Whatever the mesh, the pieces of all ranks that hold a stage count each trained element once.
TEST(NormPieces, CountEachTrainedElementOfTheModelOnce) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const World w = random_world(seed);
    for (const int zero : {0, 1}) {
      std::map<int32_t, int64_t> counted;
      for (int dp = 0; dp < w.mesh.dp; ++dp)
        for (int tp = 0; tp < w.mesh.tp; ++tp) {
          const Range own = shard(w.layout, zero, w.mesh.dp, dp);
          int64_t end = 0;
          for (const NormPiece& piece :
               norm_pieces(w.architecture, w.layout, own, w.mesh, {0, dp, tp}, zero)) {
            EXPECT_GE(piece.begin, end);
            EXPECT_GT(piece.end, piece.begin);
            EXPECT_LE(piece.end, own.end - own.begin);
            end = piece.end;
            counted[piece.parameter] += piece.end - piece.begin;
            // It lies in the place of the parameter that it names.
            bool inside = false;
            for (const FlatEntry& entry : w.layout.entries) {
              const auto& p = w.architecture.layers[static_cast<size_t>(entry.layer)]
                                  .parameters[static_cast<size_t>(entry.parameter)];
              if (static_cast<int32_t>(p.id) == piece.parameter)
                inside = entry.offset <= piece.begin + own.begin &&
                         piece.end + own.begin <= entry.offset + entry.elements;
            }
            EXPECT_TRUE(inside);
          }
        }
      for (const Layer& layer : w.architecture.layers)
        for (const Parameter& p : layer.parameters)
          EXPECT_EQ(counted[static_cast<int32_t>(p.id)], p.is_updated() ? p.shape.elements() : 0)
              << p.name << " seed " << seed << " zero " << zero;
    }
  }
}

TEST(UpdateRuns, GiveEachElementOfAnyShardItsLayersRateAndItsDecay) {
  using Rule = std::pair<double, double>;
  const Rule frozen{-1, -1};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const World w = random_world(seed);
    const double layer_decay = w.deck.optimizer.layer_decay;
    std::vector<Rule> found(static_cast<size_t>(w.layout.elements), frozen);
    for (int dp = 0; dp < w.mesh.dp; ++dp) {
      const Range own = shard(w.layout, 1, w.mesh.dp, dp);
      const auto runs = update_runs(w.architecture, w.layout, own, layer_decay);
      UpdateRun before{-1, -1};
      for (const UpdateRun& r : runs) {
        EXPECT_GE(r.begin, before.end);
        EXPECT_GT(r.end, r.begin);
        // Neighbours of one rule were merged.
        EXPECT_FALSE(r.begin == before.end && r.rate == before.rate && r.decay == before.decay);
        before = r;
        std::fill(found.begin() + own.begin + r.begin, found.begin() + own.begin + r.end,
                  Rule{r.rate, r.decay});
      }
      int64_t covered = 0, end = -1;
      for (const Range& r : joined(runs)) {
        EXPECT_GT(r.begin, end);
        end = r.end;
        covered += r.end - r.begin;
      }
      for (const UpdateRun& r : runs) covered -= r.end - r.begin;
      EXPECT_EQ(covered, 0);
    }
    for (const FlatEntry& entry : w.layout.entries) {
      const auto& p = w.architecture.layers[static_cast<size_t>(entry.layer)]
                          .parameters[static_cast<size_t>(entry.parameter)];
      // The head's layer is depth + 1 and learns at the full rate.
      double rate = 1;
      for (int64_t l = entry.layer; l <= w.architecture.model.depth; ++l) rate *= layer_decay;
      for (int64_t i = entry.offset; i < entry.offset + entry.elements; ++i) {
        const Rule rule = found[static_cast<size_t>(i)];
        if (!p.trained || p.frozen) {
          ASSERT_EQ(rule, frozen) << p.name;
        } else {
          ASSERT_NEAR(rule.first, rate, 1e-12) << p.name;
          ASSERT_EQ(rule.second, p.decay ? 1.0 : 0.0) << p.name;
        }
      }
    }
  }
}

TEST(TensorPartialRanges, HoldExactlyTheReplicatedParametersWithSummands) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const World w = random_world(seed);
    for (const bool sequence : {false, true}) {
      const auto runs = tensor_partial_ranges(w.architecture, w.layout, w.mesh, sequence);
      EXPECT_TRUE(w.mesh.tp > 1 || runs.empty());
      for (const FlatEntry& entry : w.layout.entries) {
        const auto& p = w.architecture.layers[static_cast<size_t>(entry.layer)]
                            .parameters[static_cast<size_t>(entry.parameter)];
        const bool partial =
            w.mesh.tp > 1 &&
            (p.tensor_gradient == TensorGradient::partial ||
             (sequence && p.tensor_gradient == TensorGradient::partial_if_sequence));
        int64_t covered = 0;
        for (const Range& r : runs)
          covered += std::max<int64_t>(
              0, std::min(r.end, entry.offset + entry.elements) - std::max(r.begin, entry.offset));
        EXPECT_EQ(covered, partial ? entry.elements : 0) << p.name;
      }
    }
  }
}

TEST(ParameterName, FindsAnyParameterById) {
  const Architecture a = make_architecture(test::sample_deck());
  for (const Layer& layer : a.layers)
    for (const Parameter& p : layer.parameters)
      EXPECT_EQ(parameter_name(a, static_cast<int32_t>(p.id)), p.name);
}

TEST(FirstLossScale, IsOneUnlessTheTypeIsF16) {
  Deck::Precision precision{.type = DType::bf16, .initial_loss_scale = 1024};
  EXPECT_EQ(first_loss_scale(precision), 1);
  precision.type = DType::f16;
  EXPECT_EQ(first_loss_scale(precision), 1024);
  precision.loss_scale = 8;
  EXPECT_EQ(first_loss_scale(precision), 8);
}

}  // namespace
}  // namespace voltapile
