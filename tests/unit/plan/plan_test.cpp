// What a deck becomes: chunks, resolved values, memory by name.
#include "voltapile/plan/plan.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

TEST(Chunks, CoverAllLayersOnceAsEvenlyAsPossible) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Deck deck = test::random_deck(seed);
    const Plan plan = make_plan(deck);
    int next = 0;
    int64_t shortest = deck.model.depth, longest = 0;
    for (size_t c = 0; c < plan.chunks.size(); ++c) {
      const Chunk& chunk = plan.chunks[c];
      EXPECT_EQ(chunk.first_layer, next);
      next = chunk.end_layer;
      EXPECT_EQ(chunk.rank, static_cast<int>(c) % plan.mesh.pp);
      int64_t blocks = 0;
      for (int l = chunk.first_layer; l < chunk.end_layer; ++l)
        blocks += plan.architecture.layers[static_cast<size_t>(l)].kind == LayerKind::block;
      shortest = std::min(shortest, blocks);
      longest = std::max(longest, blocks);
      EXPECT_EQ(chunk.parameters.elements % (64 * plan.mesh.dp), 0);
    }
    EXPECT_EQ(next, static_cast<int>(plan.architecture.layers.size()));
    EXPECT_GE(shortest, 1);
    EXPECT_LE(longest - shortest, 1);
  }
}

TEST(Chunks, TheOneWithTheHeadIsNotALongerOne) {
  Deck deck = test::sample_deck();
  deck.parallel.pipeline = 3;
  deck.model.depth = 7;
  const Plan plan = make_plan(deck);
  EXPECT_EQ(plan.chunks[0].end_layer, 3);  // embedding and 2 blocks
  EXPECT_EQ(plan.chunks[1].end_layer, 6);  // 3 blocks
  EXPECT_EQ(plan.chunks[2].end_layer, 9);  // 2 blocks and the head
}

TEST(Sequence, IsDividedWhereRowsDivide) {
  Deck deck = test::sample_deck();  // 16 tokens
  deck.parallel.tensor = 2;
  EXPECT_TRUE(make_plan(deck).sequence);
  deck.parallel.tensor = 1;
  EXPECT_FALSE(make_plan(deck).sequence);
  deck.parallel.tensor = 2;
  deck.model.pool = Pool::token;  // 17 tokens
  deck.batch.micro = 1;
  Plan plan = make_plan(deck);
  EXPECT_FALSE(plan.sequence);
  EXPECT_EQ(plan.deck.parallel.sequence, Sequence::off);
  deck.batch.micro = 2;
  deck.eval.batch = 1;
  plan = make_plan(deck);
  EXPECT_TRUE(plan.train.sizes.sequence);
  EXPECT_FALSE(plan.eval.sizes.sequence);
}

TEST(Gradients, LeaveInTheWorkingTypeForAnOptimizerAway) {
  Deck deck = test::sample_deck();
  deck.precision.type = DType::f16;
  Plan plan = make_plan(deck);
  EXPECT_EQ(plan.gradient_store, DType::f32);
  EXPECT_EQ(plan.deck.memory.gradients, GradientStore::f32);
  EXPECT_TRUE(plan.reduced_in_place);
  deck.memory.optimizer = Home::host;
  plan = make_plan(deck);
  EXPECT_EQ(plan.gradient_store, DType::f16);
  EXPECT_EQ(plan.deck.memory.gradients, GradientStore::working);
  // They leave at once, so the memory in which they were summed serves for their rounding too; on
  // the host, new weights take the place of gradients of their size.
  EXPECT_TRUE(plan.reduced_in_place);
  EXPECT_TRUE(plan.weights_in_place);
  deck.memory.gradients = GradientStore::f32;
  EXPECT_FALSE(make_plan(deck).weights_in_place);
}

TEST(Recomputation, SegmentsNeverCrossChunks) {
  Deck deck = test::sample_deck();
  deck.model.depth = 6;
  deck.parallel.pipeline = 2;
  deck.memory.recompute = Recompute::layers;
  deck.memory.checkpoint_every = 4;
  EXPECT_EQ(make_plan(deck).chunks[0].segment_layers, 3);
  deck.memory.checkpoint_every = 2;
  EXPECT_EQ(make_plan(deck).chunks[0].segment_layers, 2);
  deck.memory.checkpoint_every.reset();
  EXPECT_EQ(make_plan(deck).chunks[1].segment_layers, 3);
  deck.memory.recompute = Recompute::none;
  EXPECT_EQ(make_plan(deck).chunks[1].segment_layers, 0);
}

// Recomputation every 4 layers saves three quarters of the activations or more, at ViT-L's shape.
TEST(Recomputation, EveryFourLayersSavesThreeQuartersOfTheActivations) {
  Deck deck = test::vit_large_deck();
  const auto kept = [](const Plan& plan) {
    const BufferPlan& b = plan.train.buffers[0];
    return static_cast<double>(b.bytes(Value::saved) + b.bytes(Value::activation) +
                               b.bytes(Value::workspace));
  };
  const double all = kept(make_plan(deck));
  deck.memory.recompute = Recompute::layers;
  deck.memory.checkpoint_every = 4;
  const double some = kept(make_plan(deck));
  EXPECT_GE(1 - some / all, 0.75);  // the buffer of one segment included
}

TEST(Memory, LinesAddUpToWhatTheArenaAllocates) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Plan plan = make_plan(test::random_deck(seed));
    for (int rank = 0; rank < plan.mesh.pp; ++rank) {
      size_t device = 0, host = 0;
      for (const ValuePool& pool : plan.train.buffers[static_cast<size_t>(rank)].pools)
        for (size_t slot : pool.slot_bytes) (pool.home == Home::device ? device : host) += slot;
      EXPECT_EQ(plan.device_bytes(rank), device) << "seed " << seed;
      for (const MemoryLine& line : plan.memory(rank))
        if (line.name.starts_with("pictures and labels") || line.name.starts_with("state on its"))
          host += line.bytes;
      EXPECT_EQ(plan.bytes_at(Home::host, rank), host) << "seed " << seed;
    }
  }
}

TEST(Memory, WeightsAndStateAreFourteenBytesAParameterInF16AndSplitByZero) {
  Deck deck = test::sample_deck();
  deck.precision.type = DType::f16;
  deck.model.dim = 256;
  deck.model.mlp = 1024;
  const auto bytes = [](const Plan& plan, Value value) {
    return static_cast<double>(plan.train.buffers[0].bytes(value));
  };
  Plan plan = make_plan(deck);
  const double parameters = static_cast<double>(plan.architecture.parameter_count());
  EXPECT_NEAR(bytes(plan, Value::weights), 2 * parameters, 0.01 * parameters);
  EXPECT_NEAR(bytes(plan, Value::state), 12 * parameters, 0.05 * parameters);
  EXPECT_NEAR(bytes(plan, Value::gradients), 4 * parameters, 0.02 * parameters);
  EXPECT_EQ(bytes(plan, Value::reduced), 0);
  deck.optimizer.zero = 1;
  deck.parallel.data = 4;
  plan = make_plan(deck);
  EXPECT_NEAR(bytes(plan, Value::state), 12 * parameters / 4, 0.05 * parameters);
  EXPECT_NEAR(bytes(plan, Value::reduced), 4 * parameters / 4, 0.02 * parameters);
  deck.memory.gradients = GradientStore::working;
  EXPECT_NEAR(bytes(make_plan(deck), Value::reduced), 2 * parameters / 4, 0.02 * parameters);
}

TEST(Memory, HomesMoveTheirLines) {
  Deck deck = test::sample_deck();
  deck.memory.optimizer = Home::host;
  const auto line = [](const Plan& plan, std::string_view start, Home home) {
    size_t bytes = 0;
    for (const MemoryLine& l : plan.memory(0))
      if (l.name.starts_with(start) && l.home == home) bytes += l.bytes;
    return bytes;
  };
  Plan plan = make_plan(deck);
  EXPECT_GT(line(plan, "master weights", Home::host), 0u);
  EXPECT_EQ(line(plan, "master weights", Home::device), 0u);
  EXPECT_GT(line(plan, "weights", Home::device), 0u);
  deck.parallel.schedule = "gpipe";
  deck.memory.optimizer = Home::nvme;
  deck.memory.weights = Home::host;
  deck.memory.activations = ActivationStore::host;
  plan = make_plan(deck);
  EXPECT_GT(line(plan, "first moments", Home::nvme), 0u);
  EXPECT_GT(line(plan, "optimizer state in transit", Home::host), 0u);
  EXPECT_EQ(line(plan, "first moments", Home::device), 0u);
  EXPECT_GT(line(plan, "weights", Home::host), 0u);
  EXPECT_GT(line(plan, "weights", Home::device), 0u);  // in transit
  EXPECT_GT(line(plan, "stored activations", Home::host), 0u);
  EXPECT_GT(line(plan, "saved activations", Home::device), 0u);  // in transit
}

// In full only of what is copied from the device; else checkpoint.pool bounds it, and the rest of
// the state is what updates may have to wait for.
TEST(Memory, PicturesToEvaluateWaitOnTheHost) {
  Deck deck = test::sample_deck();
  deck.data.format = DataFormat::synthetic;
  deck.data.synthetic_test = 0;
  const size_t without = make_plan(deck).bytes_at(Home::host, 0);
  deck.data.synthetic_test = 1;
  const Plan plan = make_plan(deck);
  const auto& m = deck.model;
  const int64_t batch = plan.eval.samples_per_step / plan.mesh.dp;
  EXPECT_GE(plan.bytes_at(Home::host, 0) - without,
            static_cast<size_t>(3 * batch * m.channels * m.image[0] * m.image[1]));
}

TEST(Memory, ACheckpointTakesItsPoolOrACopyOfTheState) {
  Deck deck = test::sample_deck();
  deck.model.dim = 256;
  deck.model.mlp = 1024;
  deck.checkpoint.at_end = true;
  deck.checkpoint.pool_bytes = 2'000'000;
  const auto line = [](const Plan& plan) {
    size_t bytes = 0;
    for (const MemoryLine& l : plan.memory(0))
      if (l.name.starts_with("state on its way")) bytes += l.bytes;
    return bytes;
  };
  Plan plan = make_plan(deck);
  const auto state = 12 * static_cast<size_t>(plan.chunks[0].parameters.elements);
  EXPECT_EQ(save_size(plan, 0).bytes, state);
  EXPECT_EQ(line(plan), state);
  EXPECT_EQ(save_size(plan, 0).held, 0u);
  for (Home home : {Home::host, Home::nvme}) {
    deck.memory.optimizer = home;
    plan = make_plan(deck);
    EXPECT_EQ(save_size(plan, 0).bytes, state);
    EXPECT_EQ(save_size(plan, 0).held, state - 2'000'000);
    EXPECT_EQ(line(plan), 2'000'000u);
  }
  deck.optimizer.moments = MomentStore::int8;  // f32 in the checkpoint
  EXPECT_EQ(save_size(make_plan(deck), 0).bytes, state);
  deck.checkpoint.pool_bytes = 1'000'000'000;
  EXPECT_EQ(save_size(make_plan(deck), 0).held, 0u);
  EXPECT_LT(line(make_plan(deck)), state + state / 10);
  deck.checkpoint.at_end = false;
  EXPECT_EQ(line(make_plan(deck)), 0u);
}

// Of 16 tensors of a row each in f32 five stay so, and four wait in a byte an element and a scale a
// block.
TEST(Memory, EightBitActivationsTakeAboutThreeEighthsOfF32) {
  Deck deck = test::sample_deck();
  deck.model.dim = 256;
  deck.model.mlp = 1024;
  deck.parallel.schedule = "gpipe";
  deck.batch.global = 16 * deck.batch.micro * deck.parallel.data;
  const auto bytes = [](const Plan& plan, Value value) {
    return static_cast<double>(plan.train.buffers[0].bytes(value));
  };
  const double working = bytes(make_plan(deck), Value::saved);
  EXPECT_EQ(bytes(make_plan(deck), Value::stored), 0);
  deck.memory.activations = ActivationStore::int8;
  const Plan plan = make_plan(deck);
  EXPECT_NEAR(bytes(plan, Value::stored) / working, 0.38, 0.005);
  EXPECT_LT(bytes(plan, Value::saved), 0.2 * working);
  const std::vector<StoredTensor> pieces = stored_layout(plan, plan.train, 0).pieces;
  // Of each block fc1; statistics, the residual stream, qkv and the head's stay exact. Each block's
  // follow each other, in one piece of either kind.
  int64_t elements = 0, exact = 0;
  for (const StoredTensor& piece : pieces) (piece.quantised ? elements : exact) += piece.elements;
  const int64_t rows = plan.architecture.rows(plan.train.sizes), dim = deck.model.dim;
  EXPECT_EQ(elements, 4 * rows * deck.model.mlp);
  EXPECT_GT(exact, 4 * rows * (4 + 5 * dim));
  EXPECT_EQ(pieces.size(), size_t{4 * 2 + 1});
}

TEST(Memory, OfEightBitsLeavesWhatIsCheapToBeRebuilt) {
  Deck deck = test::sample_deck();
  EXPECT_FALSE(make_plan(deck).train.sizes.rebuild_attention);
  EXPECT_EQ(make_plan(deck).train.sizes.recompute, Recompute::none);
  deck.memory.activations = ActivationStore::int8;
  EXPECT_TRUE(make_plan(deck).train.sizes.rebuild_attention);
  EXPECT_EQ(make_plan(deck).train.sizes.recompute, Recompute::selective);
  EXPECT_FALSE(make_plan(deck).eval.sizes.rebuild_attention);
  deck.memory.recompute = Recompute::layers;  // which rebuilds everything
  EXPECT_FALSE(make_plan(deck).train.sizes.rebuild_attention);
  EXPECT_EQ(make_plan(deck).train.sizes.recompute, Recompute::layers);
}

TEST(Plan, IsAPureFunctionOfItsDeck) {
  const Deck deck = test::random_deck(7);
  const Plan one = make_plan(deck), two = make_plan(deck);
  EXPECT_EQ(one.train.programs, two.train.programs);
  EXPECT_EQ(one.train.buffers[0].pool(Value::saved).slot_of,
            two.train.buffers[0].pool(Value::saved).slot_of);
}

TEST(Plan, EveryProgramIsValid) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Plan plan = make_plan(test::random_deck(seed));
    EXPECT_NO_THROW(validate(plan.train.programs, plan.train.shape)) << "seed " << seed;
    EXPECT_NO_THROW(validate(plan.eval.programs, plan.eval.shape)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace voltapile
