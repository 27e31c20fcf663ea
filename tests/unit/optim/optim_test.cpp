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
          EXPECT_EQ(counted[static_cast<int32_t>(p.id)], p.trained ? p.shape.elements() : 0)
              << p.name << " seed " << seed << " zero " << zero;
    }
  }
}

TEST(DecayedRanges, AreExactlyTheMatricesInAnyShard) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const World w = random_world(seed);
    std::vector<char> expected(static_cast<size_t>(w.layout.elements), 0), found = expected;
    for (const FlatEntry& entry : w.layout.entries) {
      const auto& p = w.architecture.layers[static_cast<size_t>(entry.layer)]
                          .parameters[static_cast<size_t>(entry.parameter)];
      if (p.decay) std::fill_n(expected.begin() + entry.offset, entry.elements, char{1});
    }
    for (int dp = 0; dp < w.mesh.dp; ++dp) {
      const Range own = shard(w.layout, 1, w.mesh.dp, dp);
      int64_t end = -1;
      for (const Range& r : decayed_ranges(w.architecture, w.layout, own)) {
        EXPECT_GT(r.begin, end);  // neighbours were merged
        end = r.end;
        std::fill(found.begin() + own.begin + r.begin, found.begin() + own.begin + r.end, char{1});
      }
    }
    EXPECT_EQ(found, expected);
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
