// A model divided over the tensor axis computes what one rank computes.
#include <cmath>

#include <gtest/gtest.h>

#include "harness.hpp"

namespace voltapile::test {
namespace {

struct Case {
  int tp;
  bool sequence;
  bool every_option;
  Recompute recompute;
  bool split;
  bool rebuild;  // attention, in backward
};

std::string name(const Case& c) {
  const char* recompute = c.recompute == Recompute::none     ? ""
                          : c.recompute == Recompute::layers ? "_recomputed"
                                                             : "_selective";
  return format("tp{}{}{}{}{}{}", c.tp, c.sequence ? "_sequence" : "",
                c.every_option ? "_every_option" : "", recompute, c.split ? "_split" : "",
                c.rebuild ? "_rebuilt" : "");
}

// Ten classes, which four ranks do not divide; heads and mlp that they do.
Architecture architecture(bool every_option) {
  Deck deck = small_deck();
  deck.model.dim = 16;
  deck.model.heads = 4;
  deck.model.mlp = 24;
  deck.model.classes = 10;
  deck.model.image = {8, 16};  // 8 tokens
  deck.loss.label_smoothing = 0.1;
  if (every_option) {
    deck.model.pool = Pool::token;
    deck.model.image = {4, 28};  // 8 tokens too, with the class token
    deck.model.layer_scale = 0.1;
    deck.model.qk_norm = true;
    deck.model.drop_path = 0.4;
  }
  return make_architecture(deck);
}

void PrintTo(const Case& c, std::ostream* out) { *out << name(c); }

class TensorParallel : public testing::TestWithParam<Case> {};

void expect_equal_to_one_rank(const Case& c, DType working, double loss_tolerance,
                              double gradient_tolerance) {
  const Architecture a = architecture(c.every_option);
  Options options;
  options.working = working;
  options.micro = 3;  // 24 rows: neither halves nor quarters of them are whole samples
  const Values weights = random_weights(a);
  const std::vector<Batch> micros{random_batch(a, 3, 1), random_batch(a, 3, 2)};
  const Outcome one = run_solo(a, options, weights, micros);

  options.sequence = c.sequence;
  options.recompute = c.recompute;
  options.segment_layers = c.recompute == Recompute::layers ? 1 : 0;
  options.split_backward = c.split;
  options.rebuild_attention = c.rebuild;
  const Outcome many = run_tensor(a, options, c.tp, weights, micros);
  EXPECT_NEAR(many.loss, one.loss, loss_tolerance * one.loss);
  const Difference d = largest_difference(a, many.gradients, one.gradients);
  EXPECT_LT(d.value, gradient_tolerance) << d.where;
}

TEST_P(TensorParallel, EqualsOneRankInDouble) {
  expect_equal_to_one_rank(GetParam(), DType::f64, 1e-12, 1e-10);
}

TEST_P(TensorParallel, EqualsOneRankInSingle) {
  expect_equal_to_one_rank(GetParam(), DType::f32, 1e-6, 1e-5);
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (int tp : {2, 4})
    for (bool sequence : {false, true})
      for (bool every_option : {false, true})
        for (Recompute recompute : {Recompute::none, Recompute::layers, Recompute::selective})
          for (bool split : {false, true})
            for (bool rebuild : {false, true})
              if (!rebuild || recompute != Recompute::layers)  // which rebuilds everything
                list.push_back({tp, sequence, every_option, recompute, split, rebuild});
  return list;
}

INSTANTIATE_TEST_SUITE_P(Meshes, TensorParallel, testing::ValuesIn(cases()),
                         [](const auto& info) { return name(info.param); });

// Evaluation: every picture counted once, padding left out, whatever the number of ranks.
TEST(Evaluation, CountsTheSameOnEveryMesh) {
  const Architecture a = architecture(true);
  Options options;
  options.training = false;
  options.micro = 4;
  options.valid = 3;
  const Values weights = random_weights(a);
  std::vector<Batch> micros;
  for (uint64_t i = 0; i < 8; ++i) micros.push_back(random_batch(a, 4, i));

  const auto solo = make_solo();
  Runner one(a, options, *solo);
  one.set_weights(weights);
  const double loss = one.forward(micros);
  const std::vector<double> correct = one.correct();
  EXPECT_GT(correct[1], correct[0]);
  EXPECT_LE(correct[1], 24);

  for (const bool sequence : {false, true}) {
    options.sequence = sequence;
    spawn_ranks(4, [&](std::unique_ptr<Communicator> world) {
      Runner many(a, options, *world);
      many.set_weights(weights);
      EXPECT_NEAR(many.forward(micros), loss, 1e-12);
      EXPECT_EQ(many.correct(), correct);
    });
  }
}

// Loss, top-1 and top-5 as their definitions have them, from the logits that training keeps; the
// last sample of each micro-batch is padding.
TEST(Evaluation, CountsLabelsAmongTheGreatestLogitsOfValidSamples) {
  const Architecture a = architecture(false);
  Options options;
  options.micro = 4;
  const auto solo = make_solo();
  const Values weights = random_weights(a);
  double top1 = 0, top5 = 0, loss = 0;
  std::vector<Batch> micros;
  Runner training(a, options, *solo);
  training.set_weights(weights);
  for (uint64_t i = 0; i < 32; ++i) {
    micros.push_back(random_batch(a, 4, i));
    training.forward({micros.back()});
    const std::vector<double> logits = training.logits();
    for (size_t s = 0; s < 3; ++s) {
      const auto label = static_cast<size_t>(micros.back().labels[s]);
      double greater = 0, sum = 0;
      for (size_t k = 0; k < 10; ++k) {
        greater += logits[s * 10 + k] > logits[s * 10 + label];
        sum += std::exp(logits[s * 10 + k] - logits[s * 10 + label]);
      }
      top1 += greater < 1;
      top5 += greater < 5;
      loss += std::log(sum);
    }
  }
  options.training = false;
  options.valid = 3;
  Runner evaluation(a, options, *solo);
  evaluation.set_weights(weights);
  EXPECT_NEAR(evaluation.forward(micros), loss / 128, 1e-12);
  EXPECT_EQ(evaluation.correct(), (std::vector<double>{top1, top5}));
  EXPECT_GT(top1, 0);
}

}  // namespace
}  // namespace voltapile::test
