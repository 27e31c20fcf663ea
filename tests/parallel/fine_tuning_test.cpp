// Fine-tuning on whole runs: what is frozen keeps every bit wherever it lives, is not part of the
// gradient's norm, and neither freezing nor layer_decay tells one home from another.
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/h5/h5.hpp"

#include "small_run.hpp"

namespace voltapile {
namespace {

using testing::Folder;
using testing::run_as_threads;
using testing::RunOutcome;
using Tensors = std::map<std::string, std::vector<float>>;
using Overrides = std::vector<std::string>;

const Overrides kFreeze{
    "optimizer.freeze=[\"patch_embed.*\", \"pos_embed\", \"blocks.[0-5].*\", \"*.norm2.weight\"]"};

bool is_frozen(const std::string& name) {
  const bool block = name.starts_with("blocks.") && name[7] < '6';
  return block || name.starts_with("patch_embed.") || name == "pos_embed" ||
         name.ends_with(".norm2.weight");
}

class FineTuning : public ::testing::Test {
 protected:
  RunOutcome train(const std::string& name, const std::vector<Overrides>& parts) {
    Overrides all{
        format("run.name=\"{}\"", name), format("memory.nvme_dir=\"{}\"", folder_.path().string()),
        "checkpoint.at_end=true", "memory.gradients=\"f32\"", "optimizer.weight_decay=0.3"};
    for (const Overrides& part : parts) all.insert(all.end(), part.begin(), part.end());
    return run_as_threads(testing::kSmallDeck, all, folder_.path());
  }
  Tensors stored(const std::string& run, const std::string& path) const {
    const h5::File file = h5::File::open(resolve_checkpoint(folder_.path() / run) / "index.h5");
    std::optional<h5::Group> group;
    for (size_t at = 0; at != std::string::npos;) {
      const size_t slash = path.find('/', at);
      const std::string part = path.substr(at, slash - at);
      group = group ? group->open_group(part) : file.open_group(part);
      at = slash == std::string::npos ? slash : slash + 1;
    }
    Tensors found;
    for (const std::string& tensor : group->names()) {
      const h5::Dataset data = group->open_dataset(tensor);
      auto& values = found[tensor];
      values.resize(static_cast<size_t>(data.shape().elements()));
      data.read(values.data(), DType::f32);
    }
    return found;
  }

  Folder folder_;
};

struct Place {
  std::string name;
  Overrides overrides;
};

// Averages that move so fast that their two factors do not sum to 1 in f32.
std::vector<Place> places() {
  const Overrides averaged{"optimizer.ema=0.05"};
  return {
      {"device", averaged},
      {"divided",
       {"parallel.pipeline=2", "parallel.data=2", "optimizer.zero=1", "parallel.chunks=2",
        "parallel.schedule=\"breadth_first\"", "optimizer.ema=0.05"}},
      {"tensor",
       {"parallel.tensor=2", "parallel.data=2", "optimizer.zero=0", "optimizer.ema=0.05",
        "memory.optimizer=\"host\""}},
      {"zero_bubble",
       {"parallel.pipeline=2", "parallel.schedule=\"zero_bubble_h1\"",
        "memory.recompute=\"layers\"", "memory.optimizer=\"nvme\"", "memory.weights=\"nvme\""}},
      {"int8",
       {"memory.optimizer=\"host\"", "memory.weights=\"host\"", "optimizer.moments=\"int8\"",
        "optimizer.ema=0.05"}},
      {"half",
       {"precision.type=\"bf16\"", "memory.optimizer=\"host\"", "memory.gradients=\"working\"",
        "optimizer.ema=0.05"}},
  };
}

TEST_F(FineTuning, FrozenParametersKeepEveryBitAtEveryHome) {
  train("start", {{"optimizer.lr=0", "run.steps=1"}});
  const Tensors before = stored("start", "model");
  for (const Place& place : places()) {
    SCOPED_TRACE(place.name);
    train(place.name, {place.overrides, kFreeze});
    const bool averages = place.name != "zero_bubble";
    const Tensors after = stored(place.name, "model"), m = stored(place.name, "optimizer/m"),
                  v = stored(place.name, "optimizer/v"),
                  ema = averages ? stored(place.name, "optimizer/ema") : after;
    ASSERT_EQ(after.size(), before.size());
    for (const auto& [name, values] : before) {
      const std::vector<float> zeros(values.size(), 0.0f);
      EXPECT_EQ(after.at(name) == values, is_frozen(name)) << name;
      EXPECT_EQ(ema.at(name) == values, is_frozen(name)) << name;
      EXPECT_EQ(m.at(name) == zeros, is_frozen(name)) << name;
      EXPECT_EQ(v.at(name) == zeros, is_frozen(name)) << name;
    }
  }
}

TEST_F(FineTuning, EveryHomeTrainsToTheSameBits) {
  const Overrides layout{"parallel.pipeline=2", "parallel.data=2", "parallel.schedule=\"1f1b\"",
                         "optimizer.layer_decay=0.6", "optimizer.ema=0.8"};
  const RunOutcome reference = train("reference", {layout, kFreeze});
  const Tensors weights = stored("reference", "model"), ema = stored("reference", "optimizer/ema");
  for (const char* home : {"host", "nvme"}) {
    const RunOutcome other =
        train(home, {layout, kFreeze, {format("memory.optimizer=\"{}\"", home)}});
    EXPECT_EQ(other.losses, reference.losses) << home;
    EXPECT_EQ(stored(home, "model"), weights) << home;
    EXPECT_EQ(stored(home, "optimizer/ema"), ema) << home;
  }
  const RunOutcome even = train("even", {layout, kFreeze, {"optimizer.layer_decay=1"}});
  EXPECT_NE(even.losses.back(), reference.losses.back());
}

// Squares of the norms of two halves of the model make that of the whole.
TEST_F(FineTuning, FrozenParametersAreNoPartOfTheGradientsNorm) {
  const Overrides layout{"parallel.tensor=2", "parallel.data=2", "run.steps=1"};
  const auto norm = [&](const std::string& name, const Overrides& freeze) {
    return train(name, {layout, freeze}).records.front().grad_norm;
  };
  const double whole = norm("whole", {}),
               upper = norm("upper", {"optimizer.freeze=[\"*_embed*\", \"blocks.[0-3].*\"]"}),
               lower =
                   norm("lower", {"optimizer.freeze=[\"blocks.[4-7].*\", \"head*\", \"fc_*\"]"});
  EXPECT_GT(upper, 0);
  EXPECT_GT(lower, 0);
  EXPECT_NEAR(upper * upper + lower * lower, whole * whole, 1e-5 * whole * whole);
}

// Adam's first step is the learning rate, whatever the gradient's size.
TEST_F(FineTuning, EachLayerLearnsAtItsOwnRate) {
  train("start", {{"optimizer.lr=0", "run.steps=1"}});
  const Overrides one_step{"run.steps=1", "optimizer.lr=1e-3", "optimizer.warmup_steps=0",
                           "optimizer.schedule=\"constant\"", "optimizer.weight_decay=0"};
  train("decayed", {{"parallel.pipeline=2", "optimizer.layer_decay=0.5"}, one_step});
  const Tensors before = stored("start", "model"), after = stored("decayed", "model");
  const auto moved = [&](const std::string& name) {
    double most = 0;
    for (size_t i = 0; i < before.at(name).size(); ++i)
      most = std::max(most, std::fabs(static_cast<double>(after.at(name)[i]) - before.at(name)[i]));
    return most;
  };
  EXPECT_NEAR(moved("head.weight"), 1e-3, 2e-6);
  EXPECT_NEAR(moved("fc_norm.bias"), 1e-3, 2e-6);
  EXPECT_NEAR(moved("blocks.7.mlp.fc1.weight"), 1e-3 / 2, 2e-6);
  EXPECT_NEAR(moved("blocks.0.attn.proj.weight"), 1e-3 / 256, 2e-6);
  EXPECT_NEAR(moved("patch_embed.proj.weight"), 1e-3 / 512, 2e-6);
}

}  // namespace
}  // namespace voltapile
