// The decks and the key list that ship with the program.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "voltapile/deck/parse.hpp"

namespace voltapile {

namespace {

namespace fs = std::filesystem;

const fs::path kDecks = VOLTAPILE_INPUT_DECKS;

std::string contents(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Deck shipped(const std::string& name) { return load_deck((kDecks / (name + ".toml")).string()); }

int ranks(const Deck& deck) {
  return deck.parallel.pipeline * deck.parallel.data * deck.parallel.tensor;
}

// What the plan will ask for, as far as numbers of the deck tell.
void expect_divides(const Deck& deck) {
  EXPECT_EQ(deck.batch.global % (deck.parallel.data * deck.batch.micro), 0);
  EXPECT_EQ(deck.model.heads % deck.parallel.tensor, 0);
  EXPECT_LE(deck.parallel.pipeline * deck.parallel.chunks, deck.model.depth);
}

}  // namespace

TEST(InputDecks, ReferenceIsWhatTheSchemaSays) {
  EXPECT_EQ(contents(kDecks / "README.md"), deck_reference())
      << "stale: run `ninja deck-reference` in the build folder and commit input_decks/README.md";
}

TEST(InputDecks, ReferenceListsEveryDeckWithItsRanks) {
  const std::string page = contents(kDecks / "README.md");
  for (const auto& entry : fs::directory_iterator(kDecks)) {
    if (entry.path().extension() != ".toml") continue;
    const Deck deck = load_deck(entry.path().string());
    const std::string row =
        "| `" + entry.path().filename().string() + "` | " + std::to_string(ranks(deck)) + " | ";
    EXPECT_NE(page.find(row), std::string::npos) << "no row that begins with " << row;
  }
}

// Results of old decks must not change because a default did, unnoticed.
TEST(InputDecks, DefaultsAreTheRecordedOnes) {
  const std::string text =
      "run.steps = 100\n"
      "model = { image = 32, patch = 4, dim = 64, depth = 4, heads = 4, classes = 10 }\n"
      "batch.global = 32\n"
      "data.format = \"synthetic\"\n";
  const fs::path golden = kDecks.parent_path() / "tests/golden/short_deck_resolved.toml";
  EXPECT_EQ(write_deck(parse_deck(text, "short.toml")), contents(golden))
      << "say in CHANGELOG.md what changed, and record it in " << golden;
}

TEST(InputDecks, EveryDeckIsGoodAndDivides) {
  int decks = 0;
  for (const auto& entry : fs::directory_iterator(kDecks)) {
    if (entry.path().extension() != ".toml") continue;
    SCOPED_TRACE(entry.path().string());
    ++decks;
    const Deck deck = load_deck(entry.path().string());
    EXPECT_EQ(deck, parse_deck(write_deck(deck), deck.path));
    expect_divides(deck);
  }
  EXPECT_GE(decks, 7);
}

// Newcomers learn the deck from this one: nothing may be missing from it.
TEST(InputDecks, QuickstartShowsEveryKeyWithAComment) {
  std::istringstream quickstart(contents(kDecks / "quickstart.toml"));
  std::vector<std::string> keys;
  std::string section;
  for (std::string line; std::getline(quickstart, line);) {
    if (line.starts_with("[")) section = line.substr(1, line.find(']') - 1);
    // A key may be shown switched off, as "# walltime = ...".
    const std::string shown = line.starts_with("# ") ? line.substr(2) : line;
    const size_t end = shown.find(" = ");
    const std::string key = shown.substr(0, end);
    if (end == std::string::npos || key.find(' ') != std::string::npos) continue;
    EXPECT_NE(shown.find(" # "), std::string::npos) << "no comment: " << line;
    keys.push_back(section + "." + key);
  }
  std::istringstream written(write_deck(shipped("quickstart")));
  for (std::string line; std::getline(written, line);) {
    if (line.starts_with("[")) section = line.substr(1, line.find(']') - 1);
    const std::string shown = line.starts_with("# ") ? line.substr(2) : line;
    const size_t end = shown.find(' ');
    const bool is_key = line.find(" = ") != std::string::npos || line.ends_with(" is not set");
    if (!is_key) continue;
    EXPECT_EQ(std::count(keys.begin(), keys.end(), section + "." + shown.substr(0, end)), 1)
        << "quickstart.toml does not show " << section << "." << shown.substr(0, end);
  }
}

TEST(InputDecks, QuickstartUsesEveryAxisThatFourRanksAllow) {
  const Deck deck = shipped("quickstart");
  EXPECT_EQ(ranks(deck), 4);
  EXPECT_EQ(deck.parallel.pipeline, 2);
  EXPECT_EQ(deck.parallel.data, 2);
  EXPECT_EQ(deck.data.train_labels, "/usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz");
}

TEST(InputDecks, LargeModelsHaveTheSizesInTheirNames) {
  const auto billions = [](const Deck& deck) {
    const double c = static_cast<double>(deck.model.dim), m = static_cast<double>(deck.model.mlp);
    return static_cast<double>(deck.model.depth) * (4 * c * c + 2 * c * m) / 1e9;
  };
  const Deck b32 = shipped("vit32b_synthetic_4xv100"), b175 = shipped("vit175b_synthetic_512gpu");
  EXPECT_NEAR(billions(b32), 32, 0.5);
  EXPECT_EQ(ranks(b32), 4);
  EXPECT_EQ(b32.memory.device_limit_bytes, 32'000'000'000);
  EXPECT_NEAR(billions(b175), 174, 1);
  EXPECT_EQ(ranks(b175), 512);
  EXPECT_NEAR(billions(shipped("vit_large_synthetic")), 0.3, 0.01);
  EXPECT_NEAR(billions(shipped("vit_l16_synthetic_1gpu")), 0.3, 0.01);
  EXPECT_NEAR(billions(shipped("vit_huge_synthetic")), 0.63, 0.01);
  EXPECT_NEAR(billions(shipped("vit_tiny_synthetic")), 0.0053, 0.0001);
}

}  // namespace voltapile
