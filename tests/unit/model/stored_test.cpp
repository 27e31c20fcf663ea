// What 8 bits between forward and backward do to gradients.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "harness.hpp"

namespace voltapile::test {
namespace {

// Nearly uniform attention over values that share most of what they are: the gradient of a score,
// P (dP - delta), is then a small difference of large numbers.
class Stored : public testing::Test {
 protected:
  void SetUp() override {
    Deck deck = small_deck();
    deck.model.image = {32, 32};
    deck.model.dim = 32;
    deck.model.heads = 4;
    deck.model.mlp = 64;
    deck.model.depth = 2;
    a_ = make_architecture(deck);
    weights_ = random_weights(a_);
    for (int block = 0; block < deck.model.depth; ++block) {
      const std::string name = format("blocks.{}.attn.qkv.", block);
      const auto dim = static_cast<size_t>(deck.model.dim);
      std::vector<double>&weight = weights_.at(name + "weight"), &bias = weights_.at(name + "bias");
      for (double& value : weight) value *= 0.2;
      for (size_t i = 2 * dim; i < 3 * dim; ++i) bias[i] += 4;
    }
    options_.working = DType::f32;
    options_.micro = 4;
    micros_ = {random_batch(a_, 4)};
    exact_ = run_solo(a_, options_, weights_, micros_).gradients;
  }

  // Of the gradients of queries' and keys' weights over their length, root mean square over draws:
  // how far each is from the exact one, and how far their mean is.
  struct Error {
    double each = 0, mean = 0;
  };
  Error error(bool rebuild_attention) const {
    constexpr uint64_t kDraws = 16;
    Options options = options_;
    options.rebuild_attention = rebuild_attention;
    std::vector<double> sum;
    double squares = 0, length = 0;
    for (uint64_t seed = 1; seed <= kDraws; ++seed) {
      options.stored_seed = seed;
      const Values gradients = run_solo(a_, options, weights_, micros_).gradients;
      size_t at = 0;
      for (int block = 0; block < a_.model.depth; ++block) {
        const std::string name = format("blocks.{}.attn.qkv.weight", block);
        const size_t elements = exact_.at(name).size() / 3 * 2;
        sum.resize(at + elements);
        for (size_t i = 0; i < elements; ++i) {
          const double exact = exact_.at(name)[i], difference = gradients.at(name)[i] - exact;
          sum[at + i] += difference / kDraws;
          squares += difference * difference / kDraws;
          length += exact * exact / kDraws;
        }
        at += elements;
      }
    }
    double mean = 0;
    for (const double value : sum) mean += value * value;
    return {std::sqrt(squares / length), std::sqrt(mean / length)};
  }

  Architecture a_;
  Options options_;
  Values weights_, exact_;
  std::vector<Batch> micros_;
};

TEST_F(Stored, ScoresHaveGradientsThatAttentionRebuiltKeepsPrecise) {
  const Error kept = error(false), rebuilt = error(true);
  EXPECT_LT(rebuilt.each, 0.03);
  EXPECT_LT(rebuilt.mean, rebuilt.each / 2) << "16 draws of mean zero leave a quarter";
  EXPECT_GT(kept.each, 2 * rebuilt.each) << "an output rounded apart from v: no matter?";
}

// A bias of all keys moves no score against another, so its gradient is zero: that of a row's
// scores, P (dP - delta), has the sum zero where P, v and the output belong together.
TEST_F(Stored, KeysHaveABiasWhoseGradientStaysZero) {
  const auto keys_over_queries = [&](bool rebuild_attention) {
    Options options = options_;
    options.rebuild_attention = rebuild_attention;
    options.stored_seed = 1;
    const Values gradients = run_solo(a_, options, weights_, micros_).gradients;
    double largest = 0;
    for (int block = 0; block < a_.model.depth; ++block) {
      const std::vector<double>& bias = gradients.at(format("blocks.{}.attn.qkv.bias", block));
      const size_t dim = bias.size() / 3;
      double queries = 0, keys = 0;
      for (size_t i = 0; i < dim; ++i) {
        queries += bias[i] * bias[i];
        keys += bias[dim + i] * bias[dim + i];
      }
      largest = std::max(largest, std::sqrt(keys / queries));
    }
    return largest;
  };
  EXPECT_LT(keys_over_queries(true), 1e-4);
  EXPECT_GT(keys_over_queries(false), 1e-2) << "an output rounded apart from v: no matter?";
}

// In f32 they have the type of what is stored in 8 bits.
TEST_F(Stored, StatisticsTheResidualStreamQkvAndTheHeadStayAsTheyAre) {
  for (const Layer& layer : a_.layers) {
    for (const Tensor& tensor : saved_tensors(a_, layer, {.micro = 2})) {
      const bool statistic = tensor.name.starts_with("mean") || tensor.name.starts_with("rstd") ||
                             tensor.name == "lse" || tensor.name == "qk_stats";
      const bool stream = tensor.name == "input" || tensor.name == "middle";
      const bool exact = statistic || stream || tensor.name == "qkv";
      EXPECT_EQ(tensor.exact, exact || layer.kind == LayerKind::head) << tensor.name;
    }
  }
}

}  // namespace
}  // namespace voltapile::test
