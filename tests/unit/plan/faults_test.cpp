// Bad decks: one message with every fault, each naming its key, its value and a fix that works.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"
#include "voltapile/plan/plan.hpp"

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

std::string fault_of(const Deck& deck, int world_size = 0) {
  try {
    make_plan(deck, world_size);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    return error.what();
  }
  return "";
}
void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
}

TEST(Faults, WorldSizeNamesTheMeshAndMpirun) {
  Deck deck = test::sample_deck();
  deck.parallel.pipeline = 2;
  deck.parallel.tensor = 2;
  EXPECT_EQ(fault_of(deck, 4), "");
  EXPECT_EQ(fault_of(deck, 0), "");
  expect_parts(fault_of(deck, 3), {"sample.toml", "parallel.pipeline, data, tensor = 2 x 1 x 2",
                                   "4 ranks", "there are 3", "mpirun -n 4"});
  EXPECT_EQ(ranks_of(deck), 4);
}

TEST(Faults, BatchThatDoesNotDivideOffersItsNeighbours) {
  Deck deck = test::sample_deck();
  deck.parallel.data = 2;
  deck.batch = {.global = 10, .micro = 4};
  expect_parts(fault_of(deck), {"batch.global = 10", "4 x 2 = 8", "use 8 or 16"});
  deck.batch.global = 16;
  EXPECT_EQ(fault_of(deck), "");
  deck.batch.global = 4;
  expect_parts(fault_of(deck), {"batch.global = 4", "use 8"});
}

TEST(Faults, TensorAxisMustDivideHeadsAndMlp) {
  Deck deck = test::sample_deck();  // 4 heads, mlp 64
  deck.parallel.tensor = 3;
  const std::string text = fault_of(deck);
  expect_parts(text, {"parallel.tensor = 3", "model.heads = 4", "model.mlp = 64", "1, 2 or 4"});
}

TEST(Faults, MoreChunksThanBlocks) {
  Deck deck = test::sample_deck();
  deck.parallel.schedule = "breadth_first";
  deck.parallel.pipeline = 2;
  deck.parallel.chunks = 3;
  expect_parts(fault_of(deck), {"parallel.chunks = 3", "2 x 3 = 6", "model.depth = 4", "to 2"});
  deck.parallel.chunks = 1;
  deck.parallel.pipeline = 5;
  expect_parts(fault_of(deck), {"parallel.pipeline to 4"});
}

TEST(Faults, ScheduleMustExistForTheShape) {
  Deck deck = test::sample_deck();
  deck.parallel.pipeline = 2;
  deck.parallel.chunks = 2;
  for (const char* name : {"gpipe", "1f1b", "zero_bubble_h1"}) {
    deck.parallel.schedule = name;
    expect_parts(fault_of(deck), {"parallel.schedule", name, "parallel.chunks"});
  }
  deck.parallel.schedule = "interleaved";
  EXPECT_EQ(fault_of(deck), "");
  deck.parallel.schedule = "no such";
  expect_parts(fault_of(deck), {"parallel.schedule", "no such", "zero_bubble_h1"});
}

TEST(Faults, PatchesAndHeadsMustDivide) {
  Deck deck = test::sample_deck();
  deck.model.image = {16, 18};
  deck.model.heads = 5;
  expect_parts(fault_of(deck), {"model.patch = [4, 4]", "model.image = [16, 18]", "model.heads = 5",
                                "model.dim = 32"});
}

TEST(Faults, SequenceThatWasAskedForMustDivide) {
  Deck deck = test::sample_deck();
  deck.parallel.tensor = 4;
  deck.parallel.sequence = Sequence::on;
  EXPECT_EQ(fault_of(deck), "");
  deck.model.pool = Pool::token;
  expect_parts(fault_of(deck), {"parallel.sequence = true", "2 x 17 = 34", "multiple of 4"});
}

TEST(Faults, WeightsAwayNeedTheOptimizerAway) {
  Deck deck = test::sample_deck();
  deck.memory.weights = Home::host;
  expect_parts(fault_of(deck), {"memory.weights = \"host\"", "memory.optimizer"});
  deck.memory.optimizer = deck.memory.weights = Home::nvme;
  EXPECT_EQ(fault_of(deck), "");
  deck.memory.nvme_dir = "";
  expect_parts(fault_of(deck),
               {"memory.weights = \"nvme\"", "memory.optimizer = \"nvme\"", "memory.nvme_dir"});
}

TEST(Faults, UpdatesThatCannotBeSkippedAreNotForF16) {
  Deck deck = test::sample_deck();
  deck.optimizer.clip_norm_from = ClipNorm::previous_step;
  EXPECT_EQ(fault_of(deck), "");
  deck.precision.type = DType::f16;
  expect_parts(fault_of(deck), {"optimizer.clip_norm_from", "\"this_step\"", "bf16"});
}

TEST(Faults, PatternsThatFreezeNothingAreNamedWithTheNearestName) {
  Deck deck = test::sample_deck();
  deck.optimizer.freeze = {"blocks.*", "pos_embed", "*.bias"};
  EXPECT_EQ(fault_of(deck), "");
  deck.optimizer.freeze = {"blocks.0.atn.qkv.weight", "blocks.9.*", "*.biases", "pos_embed"};
  const std::string text = fault_of(deck);
  expect_parts(text,
               {"optimizer.freeze = \"blocks.0.atn.qkv.weight\"",
                "nearest is \"blocks.0.attn.qkv.weight\"", "optimizer.freeze = \"blocks.9.*\"",
                "nearest is \"blocks.", "optimizer.freeze = \"*.biases\""});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  deck.optimizer.freeze = {"*"};
  expect_parts(fault_of(deck), {"optimizer.freeze = [\"*\"]", "leaves nothing to train"});
}

TEST(Faults, AllAtOnce) {
  Deck deck = test::sample_deck();
  deck.parallel.tensor = 3;
  deck.parallel.schedule = "gpipe";
  deck.parallel.chunks = 9;
  deck.batch.global = 7;
  deck.model.patch = {5, 5};
  deck.memory.weights = Home::nvme;
  const std::string text = fault_of(deck, 5);
  expect_parts(text, {"mpirun", "model.patch", "model.heads = 4", "model.mlp = 64", "batch.global",
                      "parallel.chunks", "parallel.schedule = \"gpipe\"", "memory.weights"});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7);
}

class ScheduleFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              format("voltapile_plan_{}", reinterpret_cast<uintptr_t>(this));
    std::filesystem::create_directories(folder_);
    deck_ = test::sample_deck();
    deck_.parallel.pipeline = 2;
    deck_.batch.global = 4;  // 2 micro-batches
    deck_.parallel.schedule = "file";
    deck_.parallel.schedule_file = (folder_ / "schedule.txt").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(std::string_view text) { std::ofstream(deck_.parallel.schedule_file) << text; }

  std::filesystem::path folder_;
  Deck deck_;
};

TEST_F(ScheduleFile, IsPlannedAsABuiltScheduleIs) {
  Deck built = deck_;
  built.parallel.schedule = "gpipe";
  built.parallel.schedule_file.clear();
  const Plan expected = make_plan(built);
  write("F0.0 F0.1 B0.0 B0.1\nF1.0 F1.1 B1.0 B1.1\n");
  EXPECT_EQ(make_plan(deck_).train.programs, expected.train.programs);
}

TEST_F(ScheduleFile, FaultsNameTheFile) {
  expect_parts(fault_of(deck_), {"parallel.schedule_file", "schedule.txt", "no such file"});
  deck_.parallel.schedule_file = folder_.string();
  expect_parts(fault_of(deck_), {"parallel.schedule_file", "cannot be read"});
  deck_.parallel.schedule_file = (folder_ / "schedule.txt").string();
  write("F0.0 X0.1\n");
  deck_.parallel.tensor = 3;  // other faults do not hide it
  expect_parts(fault_of(deck_), {"schedule.txt:1:6", "parallel.tensor"});
  deck_.parallel.tensor = 1;
  expect_parts(fault_of(deck_), {"schedule.txt:1:6"});
  write("F0.0 B0.0 F0.1 B0.1\nF1.1 B1.1 F1.0 B1.0\n");  // each rank waits for the other
  expect_parts(fault_of(deck_), {"schedule.txt"});
}

}  // namespace
}  // namespace voltapile
