// What a plan will cost, and what this version refuses.
#include "voltapile/forecast/forecast.hpp"

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/forecast/fit.hpp"

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

Plan plan_of(const std::string& name) {
  return make_plan(load_deck(std::string(VOLTAPILE_INPUT_DECKS "/") + name));
}

TEST(Forecast, StepFlopsDoNotDependOnMeshOrSchedule) {
  Deck deck = test::sample_deck();
  deck.batch = {.global = 16, .micro = 2};
  const double expected = forecast(make_plan(deck)).model_flops_per_step;
  deck.parallel.pipeline = 2;
  deck.parallel.data = 2;
  deck.parallel.tensor = 2;
  deck.parallel.schedule = "zero_bubble_h1";
  EXPECT_NEAR(forecast(make_plan(deck)).model_flops_per_step / expected, 1, 1e-12);
  deck.parallel.schedule = "interleaved";
  deck.parallel.chunks = 2;
  EXPECT_NEAR(forecast(make_plan(deck)).model_flops_per_step / expected, 1, 1e-12);
}

TEST(Forecast, RecomputationCostsAForwardLessEachSegmentsLastProduct) {
  Deck deck = test::vit_large_deck();
  const Forecast without = forecast(make_plan(deck));
  EXPECT_EQ(without.hardware_flops_per_step, without.model_flops_per_step);
  deck.memory.recompute = Recompute::layers;
  deck.memory.checkpoint_every = 1;
  const auto extra = [&] {
    const Forecast f = forecast(make_plan(deck));
    EXPECT_EQ(f.model_flops_per_step, without.model_flops_per_step);
    return f.hardware_flops_per_step - f.model_flops_per_step;
  };
  // Of a block's 24 C C + 4 T C multiply-adds an MLP product is 8 C C.
  const double c = 1024, tokens = 196, samples = 8, forward = 24 * c * c + 4 * tokens * c;
  EXPECT_NEAR(extra() / (samples * tokens * 24 * (forward - 8 * c * c)), 1, 1e-9);
  deck.memory.checkpoint_every = 24;
  EXPECT_NEAR(extra() / (samples * tokens * (24 * forward - 8 * c * c)), 1, 1e-9);
  deck.model.layer_scale = 1e-5;  // whose gradient needs the last product after all
  EXPECT_NEAR(extra() / (samples * tokens * 24 * forward), 1, 1e-9);
}

TEST(Forecast, AttentionThatIsRebuiltCostsTimeAndIsNoWorkOfTheModel) {
  Deck deck = test::vit_large_deck();
  const Plan keeps = make_plan(deck);
  deck.memory.activations = ActivationStore::int8;
  const Plan rebuilds = make_plan(deck);
  const Forecast f = forecast(rebuilds);
  EXPECT_EQ(f.model_flops_per_step, forecast(keeps).model_flops_per_step);
  // 24 blocks of 8 samples, 4 T T C each
  EXPECT_NEAR(
      (f.hardware_flops_per_step - f.model_flops_per_step) / (24.0 * 8 * 4 * 196 * 196 * 1024), 1,
      1e-9);
  EXPECT_GT(costs_by_flops(rebuilds).backward_input, costs_by_flops(keeps).backward_input);
  EXPECT_EQ(costs_by_flops(rebuilds).recompute, 0);
}

TEST(Forecast, RecomputationEveryFourLayersSavesThreeQuartersOfActivationBytes) {
  Deck deck = test::vit_large_deck();
  deck.memory.recompute = Recompute::layers;
  deck.memory.checkpoint_every = 4;
  const Forecast f = forecast(make_plan(deck));
  EXPECT_EQ(f.activation_bytes_without_recompute,
            [] { return forecast(make_plan(test::vit_large_deck())).activation_bytes; }());
  EXPECT_GE(1 - f.activation_bytes / f.activation_bytes_without_recompute, 0.75);
}

TEST(Forecast, SimulatedBubbleIsTheFormulasWhereChunksAreEqual) {
  Deck deck = test::sample_deck();
  // Embedding and head weigh nothing next to the blocks.
  deck.model.dim = 1024;
  deck.model.mlp = 4096;
  deck.model.depth = 8;
  deck.parallel.pipeline = 4;
  deck.batch.global = deck.batch.micro * 8;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "breadth_first"}) {
    deck.parallel.schedule = schedule;
    deck.parallel.chunks = std::string_view(schedule).size() > 5 ? 2 : 1;
    const Forecast f = forecast(make_plan(deck));
    ASSERT_GT(f.bubble_formula, 0) << schedule;
    EXPECT_NEAR(f.bubble, f.bubble_formula, 0.02) << schedule;
  }
}

TEST(NotTrainable, NamesEachKeyAndItsFix) {
  Deck deck = test::sample_deck();
  EXPECT_TRUE(not_trainable(make_plan(deck)).empty());
  deck.run.device = DeviceKind::cuda;
  deck.data.format = DataFormat::tar;
  const std::vector<std::string> messages = not_trainable(make_plan(deck));
  const std::vector<std::vector<std::string>> expected{
      {"run.device = \"cuda\"", "built without CUDA", "\"cpu\""},
      {"data.format = \"tar\"", "\"idx\" or \"synthetic\""}};
  ASSERT_EQ(messages.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    for (const std::string& part : expected[i])
      EXPECT_NE(messages[i].find(part), std::string::npos) << messages[i];
}

TEST(RequireFit, NamesTheRankBothFiguresAndTheHeaviestParts) {
  Deck deck = test::vit_large_deck();
  deck.memory.device_limit_bytes = 1'000'000'000;
  try {
    require_fit(make_plan(deck));
    FAIL() << "304 million parameters fit into 1 GB";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit);
    for (const char* part : {"pp0", "memory.device_limit = 1.00 GB", "master weights", "1.2"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  deck.memory.device_limit_bytes = 100'000'000'000;
  EXPECT_NO_THROW(require_fit(make_plan(deck)));
}

// DESIGN, "Why breadth-first carries the headline": 32 billion parameters on four V100-32GB.
TEST(InputDecks, Vit32bFitsFourV100s) {
  const Plan plan = plan_of("vit32b_synthetic_4xv100.toml");
  EXPECT_NEAR(static_cast<double>(plan.architecture.parameter_count()), 32.4e9, 0.2e9);
  size_t host = 0;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_LT(plan.device_bytes(rank), 28'000'000'000u);
    host += plan.bytes_at(Home::host, rank);
  }
  const auto pools = 4 * static_cast<double>(plan.deck.checkpoint.pool_bytes);
  EXPECT_NEAR(static_cast<double>(host), 14 * 32.4e9 + pools, 1e9);
  EXPECT_NO_THROW(require_fit(plan));
  const Forecast f = forecast(plan);
  EXPECT_NEAR(f.model_flops_per_step, 1.6e15, 0.05e15);
  EXPECT_NEAR(f.hardware_flops_per_step, 2.1e15, 0.2e15);
  EXPECT_NEAR(f.bubble_formula, 0.018, 0.001);
  EXPECT_LT(f.bubble, 0.03);
}

TEST(InputDecks, Vit175bFitsFiveHundredAndTwelveGpus) {
  const Plan plan = plan_of("vit175b_synthetic_512gpu.toml");
  EXPECT_EQ(ranks_of(plan.deck), 512);
  EXPECT_NEAR(static_cast<double>(plan.architecture.parameter_count()), 174.5e9, 1e9);
  EXPECT_NO_THROW(require_fit(plan));
}

// Each page comes without a fault.
TEST(InputDecks, AllAreDescribed) {
  for (const char* name : {"quickstart.toml", "vit_tiny_synthetic.toml",
                           "vit32b_synthetic_4xv100.toml", "vit175b_synthetic_512gpu.toml"}) {
    const Plan plan = plan_of(name);
    EXPECT_NE(describe(plan).find(plan.deck.run.name), std::string::npos);
  }
}

}  // namespace
}  // namespace voltapile
