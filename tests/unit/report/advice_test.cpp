// Every rule: facts that trigger it, and the nearest ones that do not.
#include "advice.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace voltapile {
namespace {

// A run that nothing is wrong with.
Facts healthy() {
  Facts f;
  f.traced = true;
  f.pipeline = 4;
  f.data = 2;
  f.schedule = "1f1b";
  f.most_chunks = 8;
  f.micros = 16;
  f.micro = 4;
  f.global = 128;
  f.tokens = 256;
  f.type = DType::f16;
  f.device = DeviceKind::cuda;
  f.bubble = 0.05;
  f.compute_busy = 0.9;
  f.steps = 200;
  for (int rank = 0; rank < 8; ++rank)
    f.speeds.push_back({format("rank {} (pp0 dp0 tp0)", rank), format("node{}", rank), 1e-13});
  f.loss_scales.assign(200, 65536);
  return f;
}

const Advice* find(const std::vector<Advice>& all, const std::string& rule) {
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const Advice& a) { return a.rule == rule; });
  return at == all.end() ? nullptr : &*at;
}

// The rule is silent on `quiet` and speaks on `loud`, with a key and what to set it to.
Advice expect_rule(const std::string& rule, const Facts& quiet, const Facts& loud) {
  EXPECT_EQ(find(advise(quiet), rule), nullptr) << rule;
  const std::vector<Advice> all = advise(loud);
  const Advice* found = find(all, rule);
  EXPECT_NE(found, nullptr) << rule;
  if (found == nullptr) return {};
  EXPECT_FALSE(found->title.empty() || found->evidence.empty() || found->change.empty());
  EXPECT_GE(found->gain, 0);
  EXPECT_LT(found->gain, 1);
  return *found;
}

TEST(Advice, IsSilentOnAHealthyRunAndOnOneThatWasNotTraced) {
  EXPECT_TRUE(advise(healthy()).empty());
  Facts facts = healthy();
  facts.traced = false;
  facts.bubble = 0.5;
  EXPECT_TRUE(advise(facts).empty());
}

TEST(Advice, Bubble) {
  Facts quiet = healthy(), loud = healthy();
  quiet.bubble = 0.099;
  loud.bubble = 0.16;
  const Advice chunks = expect_rule("bubble", quiet, loud);
  EXPECT_EQ(chunks.key, "parallel.chunks");
  EXPECT_NEAR(chunks.gain, 3.0 / 19 - 3.0 / 131, 1e-9);
  loud.most_chunks = loud.chunks = 1;
  EXPECT_EQ(expect_rule("bubble", quiet, loud).key, "batch.micro");
  loud.micro = 1;
  EXPECT_EQ(expect_rule("bubble", quiet, loud).key, "batch.global");
  quiet = loud;
  quiet.pipeline = 1;
  expect_rule("bubble", quiet, loud);
}

TEST(Advice, TensorGroupsAcrossMachines) {
  Facts loud = healthy();
  loud.split_tensor_groups = {"rank 0 (pp0 dp0 tp0) on a, rank 1 (pp0 dp0 tp1) on b"};
  const Advice advice = expect_rule("tensor across nodes", healthy(), loud);
  EXPECT_EQ(advice.key, "parallel.tensor");
  EXPECT_NE(advice.evidence.find("tp1) on b"), std::string::npos);
}

TEST(Advice, ExposedReduction) {
  Facts quiet = healthy(), loud = healthy();
  quiet.exposed_reduction = 0.09;
  loud.exposed_reduction = 0.2;
  EXPECT_EQ(expect_rule("exposed all-reduce", quiet, loud).key, "batch.global");
  loud.gradients_reduced_in_f32 = true;
  const Advice advice = expect_rule("exposed all-reduce", quiet, loud);
  EXPECT_EQ(advice.key, "memory.gradients");
  EXPECT_NEAR(advice.gain, 0.1, 1e-9);
}

TEST(Advice, Loader) {
  Facts quiet = healthy(), loud = healthy();
  quiet.data_wait = 0.04;
  loud.data_wait = 0.3;
  loud.workers = 2;
  const Advice advice = expect_rule("loader", quiet, loud);
  EXPECT_EQ(advice.key, "data.workers");
  EXPECT_EQ(advice.change, "4");
}

TEST(Advice, Optimizer) {
  Facts quiet = healthy(), loud = healthy();
  quiet.optimizer = 0.14;
  loud.optimizer = 0.4;
  const Advice advice = expect_rule("optimizer", quiet, loud);
  EXPECT_EQ(advice.key, "optimizer.zero");
  EXPECT_NEAR(advice.gain, 0.2, 1e-9);
  loud.zero = 1;
  EXPECT_EQ(expect_rule("optimizer", quiet, loud).key, "batch.global");
}

TEST(Advice, Launch) {
  Facts quiet = healthy(), loud = healthy();
  loud.issue = quiet.issue = 0.9;
  loud.compute_busy = 0.4;
  quiet.compute_busy = 0.95;
  EXPECT_EQ(expect_rule("launch", quiet, loud).key, "batch.micro");
}

TEST(Advice, SmallMicroBatch) {
  Facts quiet = healthy(), loud = healthy();
  loud.micro = 1;
  loud.tokens = 64;
  const Advice advice = expect_rule("small micro-batch", quiet, loud);
  EXPECT_EQ(advice.key, "batch.micro");
  EXPECT_EQ(advice.change, "4");
  quiet = loud;
  quiet.device = DeviceKind::cpu;
  expect_rule("small micro-batch", quiet, loud);
}

TEST(Advice, IdleSms) {
  Facts loud = healthy();
  EXPECT_EQ(find(advise(loud), "idle SMs"), nullptr) << "before Hopper nothing is known";
  loud.gpu_busy = 0.95;
  loud.sm_activity = 0.38;
  Facts quiet = loud;
  quiet.sm_activity = 0.58;
  const Advice advice = expect_rule("idle SMs", quiet, loud);
  EXPECT_EQ(advice.key, "batch.micro");
  EXPECT_EQ(advice.change.substr(0, 2), "8:");
  EXPECT_NEAR(advice.gain, 0.45, 1e-9);
  EXPECT_NE(advice.evidence.find("95.0 %"), std::string::npos) << advice.evidence;
  EXPECT_NE(advice.evidence.find("38.0 %"), std::string::npos) << advice.evidence;
  quiet = loud;
  quiet.tensor = 2;  // collectives run on the compute lane, on few SMs
  expect_rule("idle SMs", quiet, loud);
  quiet = loud;
  quiet.compute_busy = 0.7;  // receives that wait keep the GPU busy
  expect_rule("idle SMs", quiet, loud);
  quiet = loud;
  quiet.micros = 1;
  expect_rule("idle SMs", quiet, loud);
  quiet = loud;
  quiet.tokens = 8;  // rows say more
  expect_rule("idle SMs", quiet, loud);
  EXPECT_NE(find(advise(quiet), "small micro-batch"), nullptr);
}

TEST(Advice, LossScale) {
  Facts quiet = healthy(), loud = healthy();
  loud.loss_scales.clear();
  quiet.loss_scales.clear();
  for (int halving = 0; halving < 8; ++halving)
    loud.loss_scales.push_back(65536.0 / (1 << halving));
  for (int halving = 0; halving < 4; ++halving)
    quiet.loss_scales.push_back(65536.0 / (1 << halving));
  loud.skipped = 7;
  loud.steps = 8;
  const Advice advice = expect_rule("loss scale", quiet, loud);
  EXPECT_EQ(advice.key, "optimizer.lr");
  EXPECT_NE(advice.evidence.find("from 65536 to 512"), std::string::npos) << advice.evidence;
}

TEST(Advice, StragglerAndItsHost) {
  Facts quiet = healthy(), loud = healthy();
  quiet.speeds[5].seconds_per_flop *= 1.1;
  loud.speeds[5].seconds_per_flop *= 1.5;
  const Advice advice = expect_rule("straggler", quiet, loud);
  EXPECT_NE(advice.title.find("rank 5"), std::string::npos);
  EXPECT_NE(advice.evidence.find("node5"), std::string::npos);
  EXPECT_NEAR(advice.gain, 0.9 / 3, 1e-9);
  EXPECT_EQ(advice.key, "submit --more");
  loud.device = DeviceKind::cpu;
  EXPECT_EQ(expect_rule("straggler", quiet, loud).key, "run.threads");
}

TEST(Advice, MemoryHeadroom) {
  Facts quiet = healthy(), loud = healthy();
  quiet.recompute = loud.recompute = 0.25;
  quiet.device_limit = loud.device_limit = 32e9;
  loud.device_bytes_without_recompute = 30e9;
  quiet.device_bytes_without_recompute = 34e9;
  const Advice advice = expect_rule("memory headroom", quiet, loud);
  EXPECT_EQ(advice.key, "memory.recompute");
  EXPECT_NEAR(advice.gain, 0.25, 1e-9);
}

TEST(Advice, TokensAndTheTile) {
  Facts loud = healthy();
  loud.tokens = 257;
  loud.pool = Pool::token;
  const Advice advice = expect_rule("tile", healthy(), loud);
  EXPECT_EQ(advice.key, "model.pool");
  EXPECT_NEAR(advice.gain, 0.2 * (1 - 256.0 / 320), 1e-9);
  loud.pool = Pool::mean;
  EXPECT_EQ(expect_rule("tile", healthy(), loud).key, "model.image");
  Facts quiet = loud;
  quiet.type = DType::f32;
  expect_rule("tile", quiet, loud);
}

TEST(Advice, LargestGainFirst) {
  Facts facts = healthy();
  facts.bubble = 0.16;
  facts.data_wait = 0.3;
  const std::vector<Advice> all = advise(facts);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].rule, "loader");
  EXPECT_EQ(all[1].rule, "bubble");
}

}  // namespace
}  // namespace voltapile
