// In f32 every mesh, schedule, recomputation and ZeRO stage gives the loss curve of 1x1x1 up to
// summation order.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "small_run.hpp"

namespace voltapile {
namespace {

using testing::Folder;
using testing::run_as_threads;
using testing::RunOutcome;

struct Layout {
  int pp, dp, tp;
  std::string schedule;
  int chunks;
  std::string recompute;
  int zero;
  std::string sequence;

  std::vector<std::string> overrides() const {
    return {format("parallel.pipeline={}", pp),   format("parallel.data={}", dp),
            format("parallel.tensor={}", tp),     format("parallel.schedule=\"{}\"", schedule),
            format("parallel.chunks={}", chunks), format("memory.recompute=\"{}\"", recompute),
            format("optimizer.zero={}", zero),    format("parallel.sequence={}", sequence),
            "memory.checkpoint_every=2"};
  }
  std::string text() const {
    return format("pp{} dp{} tp{} {} chunks={} recompute={} zero={} sequence={}", pp, dp, tp,
                  schedule, chunks, recompute, zero, sequence);
  }
};

bool on_gpu() { return testing::test_device() == "cuda"; }

std::vector<Layout> all_layouts() {
  std::vector<std::array<int, 3>> meshes;
  for (int pp : {1, 2})
    for (int dp : {1, 2})
      for (int tp : {1, 2}) meshes.push_back({pp, dp, tp});
  meshes.insert(meshes.end(), {{4, 1, 1}, {1, 4, 1}, {1, 1, 4}});
  std::vector<Layout> layouts;
  for (const auto& [pp, dp, tp] : meshes) {
    for (const char* schedule :
         {"gpipe", "1f1b", "interleaved", "breadth_first", "zero_bubble_h1"}) {
      const bool many =
          std::string(schedule) == "interleaved" || std::string(schedule) == "breadth_first";
      for (const char* recompute : {"none", "layers", "selective"}) {
        for (int zero : {0, 1}) {
          for (const char* sequence : {"false", "true"}) {
            if (tp == 1 && std::string(sequence) == "true") continue;
            if (zero == 1 && dp == 1) continue;
            layouts.push_back({pp, dp, tp, schedule, many ? 2 : 1, recompute, zero, sequence});
          }
        }
      }
    }
  }
  return layouts;
}

// A seeded sample that still holds every mesh and every schedule; all of them in a full run.
std::vector<Layout> chosen_layouts() {
  std::vector<Layout> layouts = all_layouts();
  if (testing::full_tests()) return layouts;
  std::mt19937 random(5);
  std::shuffle(layouts.begin(), layouts.end(), random);
  std::map<std::string, int> seen;
  std::vector<Layout> chosen;
  for (const Layout& layout : layouts) {
    const std::string mesh = format("{}{}{}", layout.pp, layout.dp, layout.tp);
    // Ranks that share a GPU take turns on it, a thousandth of a second each.
    if (on_gpu() && (layout.pp * layout.dp * layout.tp > 4 || seen[mesh] > 0)) continue;
    if (seen[mesh] >= 3 && seen[layout.schedule] >= 5) continue;
    ++seen[mesh];
    ++seen[layout.schedule];
    chosen.push_back(layout);
  }
  return chosen;
}

// Libraries choose other algorithms for other shapes on a GPU.
constexpr double kGpuTolerance = 1e-4;

void expect_close(const std::vector<double>& losses, const std::vector<double>& reference,
                  double tolerance, const std::string& what) {
  ASSERT_EQ(losses.size(), reference.size()) << what;
  if (on_gpu()) tolerance = std::max(tolerance, kGpuTolerance);
  for (size_t i = 0; i < losses.size(); ++i) {
    ASSERT_TRUE(std::isfinite(losses[i])) << what << " step " << i;
    EXPECT_NEAR(losses[i], reference[i], tolerance * std::abs(reference[i]))
        << what << " step " << i;
  }
}

TEST(LayoutInvariance, FiveStepsOnEveryLayoutAgreeWithOneRank) {
  Folder folder;
  const RunOutcome reference =
      run_as_threads(testing::kSmallDeck, {"run.name=\"reference\""}, folder.path());
  ASSERT_EQ(reference.losses.size(), 5u);
  EXPECT_NE(reference.losses.front(), reference.losses.back());
  int number = 0;
  for (const Layout& layout : chosen_layouts()) {
    std::vector<std::string> overrides = layout.overrides();
    overrides.push_back(format("run.name=\"layout{}\"", number++));
    const RunOutcome outcome = run_as_threads(testing::kSmallDeck, overrides, folder.path());
    expect_close(outcome.losses, reference.losses, 1e-5, layout.text());
    for (size_t i = 0; i < outcome.records.size(); ++i) {
      EXPECT_NEAR(outcome.records[i].grad_norm, reference.records[i].grad_norm,
                  1e-4 * reference.records[i].grad_norm)
          << layout.text() << " step " << i;
    }
  }
}

TEST(LayoutInvariance, TwentyStepsAgree) {
  if (on_gpu() && !testing::full_tests()) GTEST_SKIP() << "slow where ranks share a GPU";
  Folder folder;
  const RunOutcome reference = run_as_threads(
      testing::kSmallDeck, {"run.name=\"reference\"", "run.steps=20"}, folder.path());
  std::vector<Layout> layouts{{2, 2, 2, "interleaved", 2, "layers", 1, "true"},
                              {4, 1, 1, "zero_bubble_h1", 1, "selective", 0, "false"},
                              {2, 1, 4, "breadth_first", 2, "none", 0, "true"}};
  if (testing::full_tests()) layouts = all_layouts();
  int number = 0;
  for (const Layout& layout : layouts) {
    std::vector<std::string> overrides = layout.overrides();
    overrides.insert(overrides.end(), {format("run.name=\"twenty{}\"", number++), "run.steps=20"});
    expect_close(run_as_threads(testing::kSmallDeck, overrides, folder.path()).losses,
                 reference.losses, 1e-4, layout.text());
  }
}

// Seven layers on three ranks, ten classes and LayerScale, QK-norm, drop path, class token, an
// image that is not square.
TEST(LayoutInvariance, OddShapesAgree) {
  if (on_gpu() && !testing::full_tests()) GTEST_SKIP() << "slow where ranks share a GPU";
  const std::vector<std::string> odd{
      "model.depth=7",      "model.image=[8, 12]", "model.pool=\"token\"",
      "batch.global=12",    "batch.micro=2",       "model.layer_scale=0.1",
      "model.qk_norm=true", "model.drop_path=0.2", "loss.label_smoothing=0.1"};
  Folder folder;
  const auto run = [&](const std::string& name, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), odd.begin(), odd.end());
    overrides.push_back(format("run.name=\"{}\"", name));
    return run_as_threads(testing::kSmallDeck, overrides, folder.path()).losses;
  };
  const std::vector<double> reference = run("reference", {});
  const std::vector<Layout> layouts{{3, 1, 1, "1f1b", 1, "none", 0, "false"},
                                    {3, 1, 1, "breadth_first", 2, "layers", 0, "false"},
                                    {1, 1, 4, "gpipe", 1, "none", 0, "false"},
                                    {3, 2, 2, "interleaved", 2, "selective", 1, "true"},
                                    {3, 1, 4, "zero_bubble_h1", 1, "layers", 0, "false"},
                                    {1, 3, 1, "gpipe", 1, "none", 1, "false"}};
  int number = 0;
  for (const Layout& layout : layouts) {
    expect_close(run(format("odd{}", number++), layout.overrides()), reference, 1e-5,
                 layout.text());
  }
}

// Five classes on four tensor ranks: two, two, one, none.
TEST(LayoutInvariance, ATensorRankWithoutAClassAgrees) {
  Folder folder;
  const auto run = [&](const std::string& name, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"model.classes=5", format("run.name=\"{}\"", name)});
    return run_as_threads(testing::kSmallDeck, overrides, folder.path());
  };
  const RunOutcome reference = run("reference", {});
  const RunOutcome divided =
      run("divided", Layout{1, 1, 4, "gpipe", 1, "none", 0, "false"}.overrides());
  expect_close(divided.losses, reference.losses, 1e-5, "five classes on tp 4");
  EXPECT_EQ(divided.summary.evaluation->top1, reference.summary.evaluation->top1);
  EXPECT_EQ(divided.summary.evaluation->top5, 1.0);
}

}  // namespace
}  // namespace voltapile
