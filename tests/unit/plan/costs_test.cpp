#include "voltapile/plan/costs.hpp"

#include <array>
#include <string_view>

#include <gtest/gtest.h>

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

struct Model {
  const char* name;
  int64_t image, patch, dim, depth, heads, mlp, classes;
};
// ViT-Ti to 32 billion parameters (Dosovitskiy et al. 2021, Zhai et al. 2022, Dehghani et al.
// 2023).
constexpr std::array<Model, 10> kShapes{{
    {"Ti/16", 224, 16, 192, 12, 3, 768, 1000},
    {"S/16", 224, 16, 384, 12, 6, 1536, 1000},
    {"B/16", 224, 16, 768, 12, 12, 3072, 1000},
    {"B/32 at 384", 384, 32, 768, 12, 12, 3072, 21841},
    {"L/16", 224, 16, 1024, 24, 16, 4096, 1000},
    {"H/14", 224, 14, 1280, 32, 16, 5120, 1000},
    {"g/14", 224, 14, 1408, 40, 16, 6144, 1000},
    {"G/14", 224, 14, 1664, 48, 16, 8192, 1000},
    {"22B", 224, 14, 6144, 48, 48, 24576, 21841},
    {"32B", 224, 14, 8192, 40, 64, 32768, 21841},
}};

Deck deck_of(const Model& s) {
  Deck deck = test::sample_deck();
  deck.model.image = {s.image, s.image};
  deck.model.patch = {s.patch, s.patch};
  deck.model.dim = s.dim;
  deck.model.depth = s.depth;
  deck.model.heads = s.heads;
  deck.model.mlp = s.mlp;
  deck.model.classes = s.classes;
  deck.batch = {.global = 8, .micro = 2};
  return deck;
}

double recorded_flops(const Plan& plan) {
  double sum = 0;
  for (int pp = 0; pp < plan.mesh.pp; ++pp)
    for (const Instruction& instruction : plan.train.programs[static_cast<size_t>(pp)])
      sum += cost_of(plan, instruction).flops;
  return sum * plan.mesh.dp * plan.mesh.tp;
}

// Of a sample: 6 N T with N the blocks' matrices, 12 T^2 C of attention a block; the head sees one
// token, and the patch embedding has no gradient of the pixels.
double analytic(const Model& s) {
  const auto n = [](int64_t value) { return static_cast<double>(value); };
  const double tokens = n(s.image / s.patch) * n(s.image / s.patch), c = n(s.dim);
  const double matrices = n(s.depth) * (4 * c * c + 2 * c * n(s.mlp));
  return 6 * matrices * tokens + n(s.depth) * 12 * tokens * tokens * c +
         4 * 3 * n(s.patch * s.patch) * c * tokens + 6 * c * n(s.classes);
}

TEST(Costs, FlopsOfAStepsInstructionsAreSixNTPlusAttentionForTenShapes) {
  for (const Model& shape : kShapes) {
    Deck deck = deck_of(shape);
    EXPECT_NEAR(recorded_flops(make_plan(deck)) / (8 * analytic(shape)), 1, 1e-3) << shape.name;
    deck.parallel.pipeline = 2;
    deck.parallel.data = 2;
    deck.parallel.schedule = "zero_bubble_h1";
    EXPECT_NEAR(recorded_flops(make_plan(deck)) / (8 * analytic(shape)), 1, 1e-3) << shape.name;
  }
}

TEST(Costs, AttentionThatBackwardRebuildsIsInItsFlopsAndNotInTheModels) {
  for (const char* schedule : {"1f1b", "zero_bubble_h1"}) {
    Deck deck = test::sample_deck();
    deck.parallel.pipeline = 2;
    deck.parallel.schedule = schedule;
    const Plan keeps = make_plan(deck);
    deck.memory.activations = ActivationStore::int8;
    const Plan rebuilds = make_plan(deck);
    const bool split = std::string_view(schedule) == "zero_bubble_h1";
    for (int16_t chunk = 0; chunk < 2; ++chunk) {
      const Chunk& its = rebuilds.chunks[static_cast<size_t>(chunk)];
      EXPECT_EQ(flops_of(rebuilds, its).model(), flops_of(keeps, its).model());
      const auto more = [&](Op op) {
        const Instruction instruction{op, Lane::compute, chunk, 0};
        return cost_of(rebuilds, instruction).flops - cost_of(keeps, instruction).flops;
      };
      // q k^T, and the scores times v: 4 B T T C; half the blocks of it all.
      const double blocks = static_cast<double>(deck.model.depth) / 2;
      EXPECT_EQ(more(split ? Op::backward_input : Op::backward), blocks * 4 * 2 * 16 * 16 * 32);
      EXPECT_EQ(more(Op::forward), 0);
      EXPECT_EQ(more(Op::backward_weight), 0);
    }
  }
}

TEST(Costs, BytesAreThoseThatLeaveOrEnter) {
  Deck deck = test::sample_deck();
  deck.parallel.pipeline = 2;
  deck.parallel.data = 2;
  const Plan plan = make_plan(deck);
  const auto bytes = [&](Op op, Lane lane, int16_t chunk) {
    return cost_of(plan, {op, lane, chunk, 0}).bytes;
  };
  // (B, T, C) in f32
  const int64_t boundary = 2 * 16 * 32 * 4;
  EXPECT_EQ(bytes(Op::send_activation, Lane::pipe_out, 1), boundary);
  EXPECT_EQ(bytes(Op::receive_gradient, Lane::pipe_in, 1), boundary);
  EXPECT_EQ(bytes(Op::load_batch, Lane::input, 0), 2 * 3 * 16 * 16);
  EXPECT_EQ(bytes(Op::load_batch, Lane::input, 1), 2 * 4);
  EXPECT_EQ(bytes(Op::forward, Lane::compute, 0), 0);
  const int64_t elements = plan.chunks[1].parameters.elements;
  EXPECT_EQ(bytes(Op::reduce_gradients, Lane::dp, 1), 4 * elements);
  EXPECT_EQ(bytes(Op::norm, Lane::dp, -1), 0);
  // Gradients in, three of state in and out, weights out
  EXPECT_EQ(bytes(Op::update, Lane::compute, 1), (1 + 3 + 3 + 1) * 4 * elements);
  deck.parallel.data = 1;
  const Plan alone = make_plan(deck);
  EXPECT_EQ(cost_of(alone, {Op::reduce_gradients, Lane::dp, 1, -1}).bytes, 0);
}

}  // namespace
}  // namespace voltapile
