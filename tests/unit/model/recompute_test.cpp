// Recomputation, a split backward and cuts into chunks change memory and order, not one bit.
#include <gtest/gtest.h>

#include "harness.hpp"

namespace voltapile::test {
namespace {

Architecture architecture(bool every_option) {
  Deck deck = small_deck();
  deck.model.depth = 5;
  if (every_option) {
    deck.model.pool = Pool::token;
    deck.model.layer_scale = 0.1;
    deck.model.qk_norm = true;
    deck.model.drop_path = 0.4;
  }
  return make_architecture(deck);
}

class SameBits : public testing::TestWithParam<std::tuple<bool, DType>> {
 protected:
  void SetUp() override {
    a_ = architecture(std::get<0>(GetParam()));
    options_.working = std::get<1>(GetParam());
    options_.loss_scale = options_.working == DType::f16 ? 64 : 1;
    weights_ = random_weights(a_);
    micros_ = {random_batch(a_, 2, 1), random_batch(a_, 2, 2), random_batch(a_, 2, 3)};
    plain_ = run_solo(a_, options_, weights_, micros_);
  }
  void expect_same_bits(const Options& options, const std::string& what) const {
    const Outcome other = run_solo(a_, options, weights_, micros_);
    EXPECT_EQ(other.loss, plain_.loss) << what;
    EXPECT_EQ(other.gradients, plain_.gradients) << what;
  }
  Architecture a_;
  Options options_;
  Values weights_;
  std::vector<Batch> micros_;
  Outcome plain_;
};

TEST_P(SameBits, WithEverySegmentSize) {
  for (int segment = 1; segment <= 6; ++segment) {
    for (bool split : {false, true}) {
      Options options = options_;
      options.recompute = Recompute::layers;
      options.segment_layers = segment;
      options.split_backward = split;
      expect_same_bits(options, format("segments of {}, split {}", segment, split));
      options.cuts = {3};
      expect_same_bits(options, format("two chunks, segments of {}, split {}", segment, split));
    }
  }
}

TEST_P(SameBits, WithSelectiveRecomputation) {
  for (bool split : {false, true}) {
    Options options = options_;
    options.recompute = Recompute::selective;
    options.split_backward = split;
    expect_same_bits(options, format("selective, split {}", split));
  }
}

TEST_P(SameBits, WithAttentionRebuilt) {
  for (Recompute recompute : {Recompute::none, Recompute::selective}) {
    for (bool split : {false, true}) {
      Options options = options_;
      options.rebuild_attention = true;
      options.recompute = recompute;
      options.split_backward = split;
      expect_same_bits(options, format("split {}", split));
    }
  }
}

TEST_P(SameBits, WithASplitBackward) {
  Options options = options_;
  options.split_backward = true;
  expect_same_bits(options, "split");
}

TEST_P(SameBits, WithEveryCutIntoChunks) {
  for (const std::vector<int>& cuts :
       std::vector<std::vector<int>>{{2}, {5}, {2, 3, 4, 5}, {3, 4}}) {
    Options options = options_;
    options.cuts = cuts;
    expect_same_bits(options, format("{} chunks", cuts.size() + 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SameBits,
                         testing::Combine(testing::Bool(),
                                          testing::Values(DType::f64, DType::f32, DType::bf16,
                                                          DType::f16)),
                         [](const auto& info) {
                           return format("{}{}", name_of(std::get<1>(info.param)),
                                         std::get<0>(info.param) ? "_every_option" : "");
                         });

// The 16-bit types follow single precision as closely as their mantissa allows.
TEST(WorkingType, GradientsOfSixteenBitTypesFollowSingle) {
  const Architecture a = architecture(true);
  const Values weights = random_weights(a);
  const std::vector<Batch> micros{random_batch(a, 2, 1)};
  Options options;
  options.working = DType::f32;
  const Outcome single = run_solo(a, options, weights, micros);
  options.working = DType::bf16;
  EXPECT_LT(largest_difference(a, run_solo(a, options, weights, micros).gradients, single.gradients)
                .value,
            0.1);
  options.working = DType::f16;
  options.loss_scale = 256;
  Outcome half = run_solo(a, options, weights, micros);
  for (auto& [name, values] : half.gradients)
    for (double& value : values) value /= options.loss_scale;
  EXPECT_LT(largest_difference(a, half.gradients, single.gradients).value, 0.01);
}

}  // namespace
}  // namespace voltapile::test
