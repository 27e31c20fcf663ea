// The page of `voltapile plan`.
#include <algorithm>
#include <sstream>

#include <gtest/gtest.h>

#include "voltapile/forecast/forecast.hpp"

#include "../../support/sample_deck.hpp"

namespace voltapile {
namespace {

size_t width(const std::string& line) {
  return static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

TEST(Describe, CountsFrozenParameters) {
  Deck deck = test::sample_deck();
  EXPECT_EQ(describe(make_plan(deck)).find("frozen"), std::string::npos);
  deck.optimizer.freeze = {"blocks.*", "patch_embed.*", "pos_embed"};
  deck.parallel.pipeline = 2;
  const std::string page = describe(make_plan(deck));
  // The head: a norm of 32, and 10 classes. Each block: 4 x 32 for norms, 3 x 32 x 33 and 32 x 33
  // for attention, 64 x 33 + 32 x 65 for mlp = 8,544. The embedding: 32 x (3 x 16 + 1 + 16 tokens).
  for (const char* part : {"394 parameters are trained, 36,256 are frozen (optimizer.freeze)",
                           "frozen", "19,168", "17,088"})
    EXPECT_NE(page.find(part), std::string::npos) << "no \"" << part << "\" in\n" << page;
}

TEST(Describe, SaysEverythingThatThePlanDecided) {
  Deck deck = test::sample_deck();
  deck.parallel.pipeline = 2;
  deck.parallel.data = 2;
  deck.parallel.tensor = 2;
  deck.parallel.schedule = "breadth_first";
  deck.parallel.chunks = 2;
  deck.optimizer.zero = 1;
  deck.model.classes = 9;
  deck.memory.recompute = Recompute::layers;
  deck.memory.device_limit_bytes = 10'000'000;
  const Plan plan = make_plan(deck);
  const std::string page = describe(plan);
  for (const char* part : {"sample: ",
                           "8 ranks",
                           "sample.toml",
                           "pp2 x dp2 x tp2",
                           "mpirun -n 8",
                           "4 blocks of width 32",
                           "breadth_first",
                           "rank 0",
                           "rank 1",
                           "bubble",
                           "by the formula",
                           "micro-batches",
                           "embedding + 0",
                           "3 + head",
                           "weights (f32)",
                           "master weights",
                           "gradients (f32)",
                           "saved activations",
                           "workspace",
                           "memory.device_limit = 10.0 MB",
                           "left",
                           "host memory of all 8 ranks",
                           "parallel.sequence = \"auto\" became true",
                           "memory.gradients = \"auto\" became \"f32\"",
                           "padded to 10",
                           "without recomputation"})
    EXPECT_NE(page.find(part), std::string::npos) << "no \"" << part << "\" in\n" << page;
}

// Figures of the disk are those of a hardware file, or none.
TEST(Describe, TellsWhatASaveHoldsUpWhereTheDiskIsKnown) {
  Deck deck = test::sample_deck();
  deck.model.dim = 256;
  deck.model.mlp = 1024;
  deck.memory.optimizer = Home::host;
  deck.checkpoint.pool_bytes = 2'000'000;
  const Plan plan = make_plan(deck);
  const auto said = [&](const Hardware& hardware) {
    std::string page = describe(plan, hardware);
    page = page.substr(page.find("  saving "));
    page = page.substr(0, page.find("\n\n"));
    for (size_t at = 0; (at = page.find("\n               ")) != std::string::npos;)
      page.replace(at, 16, " ");
    return page;
  };
  EXPECT_NE(said({}).find("how long that takes is unknown"), std::string::npos) << said({});
  const auto state = static_cast<double>(save_size(plan, 0).bytes);
  Hardware hardware;
  hardware.disk_is_measured = true;
  hardware.disk_bytes_per_second = (state - 2e6) / 50;
  const std::string page = said(hardware);
  EXPECT_NE(page.find("a pool of 2.00 MB"), std::string::npos) << page;
  EXPECT_NE(page.find("to be written: 50.0 s at most, of "), std::string::npos) << page;
}

TEST(Describe, StaysWithinItsColumnsAndEndsNoLineWithSpaces) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Plan plan = make_plan(test::random_deck(seed));
    for (const int columns : {80, 100, 120}) {
      std::istringstream page(describe(plan, {}, columns));
      for (std::string line; std::getline(page, line);) {
        EXPECT_LE(width(line), static_cast<size_t>(columns)) << "seed " << seed << "\n" << line;
        EXPECT_FALSE(line.ends_with(' ')) << line;
      }
    }
  }
}

TEST(Describe, ShowsAMemoryColumnForEachKindOfRankAndSumsThem) {
  Deck deck = test::sample_deck();
  deck.parallel.pipeline = 4;
  deck.parallel.schedule = "breadth_first";
  deck.batch.global = 8 * deck.batch.micro;
  const Plan plan = make_plan(deck);
  const std::string page = describe(plan);
  // The two in the middle hold the same.
  EXPECT_NE(page.find("pp0  "), std::string::npos);
  EXPECT_NE(page.find("pp1-2"), std::string::npos);
  EXPECT_EQ(page.find("pp1-3"), std::string::npos);
}

TEST(Describe, LongPipelinesAreShortened) {
  Deck deck = test::sample_deck();
  deck.parallel.pipeline = 20;
  deck.model.depth = 20;
  deck.batch.global = 40;
  const std::string page = describe(make_plan(deck));
  EXPECT_NE(page.find("pp19"), std::string::npos);
  EXPECT_EQ(page.find("\n  pp17 "), std::string::npos);
  EXPECT_NE(page.find("more kinds of rank"), std::string::npos);
}

}  // namespace
}  // namespace voltapile
