// The whole model and optimizer against PyTorch and timm, whose values are in tests/golden/timm.
#include <cmath>

#include <gtest/gtest.h>

#include "voltapile/optim/optim.hpp"

#include "timm_reference.hpp"

namespace voltapile::test {
namespace {

using Case = std::tuple<std::string, DType>;

class Timm : public testing::TestWithParam<Case> {
 protected:
  Timm()
      : reference_(std::filesystem::path(VOLTAPILE_GOLDEN) / (std::get<0>(GetParam()) + ".ref")),
        architecture_(make_architecture(reference_.deck())) {
    options_.working = std::get<1>(GetParam());
    options_.micro = reference_.samples();
    options_.pixel_mean = reference_.values("mean");
    options_.pixel_std = reference_.values("std");
    runner_ = std::make_unique<Runner>(architecture_, options_, *solo_);
    runner_->set_weights(reference_.tensors_under("before"));
  }
  Values weights() const;
  // A bias of all keys shifts all scores of a query alike, so its gradient is zero in exact
  // arithmetic and Adam amplifies rounding. It is a third of qkv.bias, or k_norm.bias behind which
  // that third acts.
  bool is_key_bias(const std::string& name, size_t element) const;

  TimmReference reference_;
  Architecture architecture_;
  Options options_;
  std::unique_ptr<Communicator> solo_ = make_solo();
  std::unique_ptr<Runner> runner_;
};

Values Timm::weights() const {
  Values found;
  for (const FlatEntry& entry : runner_->layout(0).entries) {
    const Parameter& p = architecture_.layers[static_cast<size_t>(entry.layer)]
                             .parameters[static_cast<size_t>(entry.parameter)];
    found[p.name] =
        read_values(runner_->weights(0).slice_flat(entry.offset, entry.offset + entry.elements));
  }
  return found;
}

bool Timm::is_key_bias(const std::string& name, size_t element) const {
  const auto dim = static_cast<size_t>(architecture_.model.dim);
  if (architecture_.model.qk_norm) return name.ends_with("k_norm.bias");
  return name.ends_with("qkv.bias") && element / dim == 1;
}

TEST_P(Timm, HasTheSameParameters) {
  const Values theirs = reference_.tensors_under("before");
  std::map<std::string, size_t> names, expected;
  for (const auto& [name, values] : theirs) expected[name] = values.size();
  for (const Layer& layer : architecture_.layers)
    for (const Parameter& p : layer.parameters)
      names[p.name] = static_cast<size_t>(p.shape.elements());
  EXPECT_EQ(names, expected);
}

TEST_P(Timm, GivesTheSameLogitsAndLoss) {
  EXPECT_NEAR(runner_->forward({reference_.batch(0)}), reference_.tensor("loss")[0], 1e-5);
  const std::vector<double> ours = runner_->logits(), theirs = reference_.tensor("logits");
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-5) << "logit " << i;
}

TEST_P(Timm, GivesTheSameGradients) {
  runner_->step({reference_.batch(0)});
  Values ours;
  runner_->add_gradients(ours);
  const Difference d =
      largest_difference(architecture_, ours, reference_.tensors_under("gradient"));
  EXPECT_LT(d.value, options_.working == DType::f64 ? 1e-6 : 1e-4) << d.where;
}

// Clipping by the global norm, and timm's rule of what decays, are part of it; of fine_tuning also
// layers that are frozen, and a learning rate of each layer's own.
TEST_P(Timm, HasTheSameWeightsAfterFiveSteps) {
  const FlatLayout& layout = runner_->layout(0);
  const Range everything{0, layout.elements};
  const Mesh mesh;
  const std::vector<NormPiece> pieces =
      norm_pieces(architecture_, layout, everything, mesh, Coord{}, 0);
  const std::vector<UpdateRun> runs =
      update_runs(architecture_, layout, everything, reference_.deck().optimizer.layer_decay);
  const AdamW adamw{reference_.value("beta1"), reference_.value("beta2"), reference_.value("eps"),
                    reference_.value("weight_decay")};
  NormRules rules;
  rules.clip = reference_.value("clip");

  const DType acc = accumulate_type(options_.working);
  std::vector<double> memory[3];  // master, m, v
  for (auto& m : memory) m.assign(static_cast<size_t>(layout.elements), 0.0);
  const auto state_view = [&](int i) {
    return TensorView{memory[i].data(), acc, {layout.elements}};
  };
  write_values(state_view(0), read_values(runner_->weights(0)));
  Device& device = runner_->device();
  Stream& stream = device.stream(Lane::compute);
  StepState& state = runner_->state();
  state.inputs.learning_rate = reference_.value("lr");

  const std::vector<double> norms = reference_.tensor("norm");
  for (int64_t step = 0; step < reference_.steps(); ++step) {
    const double loss = runner_->step({reference_.batch(step)});
    std::vector<double> slots(NormSlots::count, 0.0);
    slots[NormSlots::loss] = loss;
    slots[NormSlots::samples] = 1;
    int32_t first_bad = INT32_MAX;
    const TensorView slots_view{slots.data(), DType::f64, {NormSlots::count}};
    const TensorView bad_view{&first_bad, DType::i32, {1}};
    StepState next = state;
    device.kernels().sum_squares(runner_->gradients(0), pieces, slots_view, bad_view, stream);
    device.kernels().finish_norm(slots_view, bad_view, rules, &state, &next, stream);
    device.kernels().adamw(runner_->gradients(0), state_view(0), state_view(1), state_view(2),
                           runner_->weights(0), runs, adamw, &state, stream);
    device.wait_on_host(device.record(stream));
    const auto expected = norms[static_cast<size_t>(step)];
    EXPECT_NEAR(state.grad_norm, expected, 1e-5 * expected) << "step " << step;
    next.inputs = state.inputs;
    state = next;
  }

  const Values ours = weights(), theirs = reference_.tensors_under("after");
  double largest = 0;
  std::string where;
  for (const auto& [name, values] : theirs) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(ours.at(name)[i] - values[i]);
      if (is_key_bias(name, i) || difference <= largest) continue;
      largest = difference;
      where = format("{}[{}]: {} and {}", name, i, ours.at(name)[i], values[i]);
    }
  }
  EXPECT_LT(largest, options_.working == DType::f64 ? 1e-6 : 1e-5) << where;
  RecordProperty("largest", format("{}", largest));
}

INSTANTIATE_TEST_SUITE_P(Variants, Timm,
                         testing::Combine(testing::Values("class_token", "mean_pool_not_square",
                                                          "qk_norm", "layer_scale", "all_options",
                                                          "fine_tuning"),
                                          testing::Values(DType::f32, DType::f64)),
                         [](const auto& info) {
                           return format("{}_{}", std::get<0>(info.param),
                                         name_of(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace voltapile::test
