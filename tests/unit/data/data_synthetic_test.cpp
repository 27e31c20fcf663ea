#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "voltapile/data/data.hpp"

namespace voltapile {
namespace {

using Bytes = std::vector<uint8_t>;

Deck synthetic_deck() {
  Deck deck;
  deck.run.seed = 7;
  deck.data.format = DataFormat::synthetic;
  deck.data.synthetic_train = 400;
  deck.data.synthetic_test = 200;
  deck.model.image = {12, 20};
  deck.model.channels = 3;
  deck.model.classes = 10;
  return deck;
}

struct Sample {
  Bytes picture;
  int32_t label = -1;
  bool operator==(const Sample&) const = default;
};

Sample read(const Source& source, int64_t index) {
  Sample sample{Bytes(3 * 12 * 20), -1};
  source.read(index, sample.picture, sample.label);
  return sample;
}

TEST(Synthetic, HasTheSizesOfTheDeck) {
  EXPECT_EQ(open_source(synthetic_deck(), Part::train)->size(), 400);
  EXPECT_EQ(open_source(synthetic_deck(), Part::test)->size(), 200);
}

TEST(Synthetic, IsAPureFunctionOfSeedPartAndIndex) {
  Deck deck = synthetic_deck();
  const auto once = open_source(deck, Part::train), again = open_source(deck, Part::train);
  const auto test = open_source(deck, Part::test);
  deck.run.seed = 8;
  const auto other = open_source(deck, Part::train);
  for (int64_t i = 0; i < 20; ++i) {
    const Sample sample = read(*once, i);
    EXPECT_EQ(sample, read(*again, i));
    EXPECT_NE(sample.picture, read(*once, i + 1).picture);
    EXPECT_NE(sample.picture, read(*test, i).picture);
    EXPECT_NE(sample.picture, read(*other, i).picture);
    int32_t label = -1;
    once->read(i, {}, label);
    EXPECT_EQ(label, sample.label);
  }
}

TEST(Synthetic, LabelsCoverTheClassesEvenly) {
  Deck deck = synthetic_deck();
  deck.data.synthetic_train = 10000;
  const auto source = open_source(deck, Part::train);
  std::vector<int> of_class(10);
  for (int64_t i = 0; i < source->size(); ++i) {
    int32_t label = -1;
    source->read(i, {}, label);
    ++of_class.at(static_cast<size_t>(label));
  }
  for (int count : of_class) EXPECT_NEAR(count, 1000, 150);  // five sigma
}

// The nearest mean picture of a class, learned on the training part, names the classes of the test
// part: the signal is in the pictures, and it is the same in both parts.
TEST(Synthetic, ClassesCanBeLearned) {
  const auto train = open_source(synthetic_deck(), Part::train);
  const auto test = open_source(synthetic_deck(), Part::test);
  constexpr size_t kPixels = 3 * 12 * 20;
  std::vector<std::vector<double>> mean(10, std::vector<double>(kPixels));
  std::vector<int> count(10);
  for (int64_t i = 0; i < train->size(); ++i) {
    const Sample sample = read(*train, i);
    const auto label = static_cast<size_t>(sample.label);
    ++count[label];
    for (size_t p = 0; p < kPixels; ++p) mean[label][p] += sample.picture[p];
  }
  int right = 0;
  for (int64_t i = 0; i < test->size(); ++i) {
    const Sample sample = read(*test, i);
    size_t best = 0;
    double best_distance = std::numeric_limits<double>::max();
    for (size_t label = 0; label < 10; ++label) {
      double distance = 0;
      for (size_t p = 0; p < kPixels; ++p) {
        const double d = sample.picture[p] - mean[label][p] / count[label];
        distance += d * d;
      }
      if (distance < best_distance) best = label, best_distance = distance;
    }
    right += best == static_cast<size_t>(sample.label);
  }
  EXPECT_GE(right, 190) << "of 200";
}

}  // namespace
}  // namespace voltapile
