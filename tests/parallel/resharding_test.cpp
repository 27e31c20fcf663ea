// A run continues on any other layout: mesh, schedule, micro-batch, recomputation, ZeRO stage,
// homes.
#include <random>

#include <gtest/gtest.h>

#include "small_run.hpp"

namespace voltapile {
namespace {

using testing::Folder;
using testing::run_as_threads;
using testing::RunOutcome;

class Layouts {
 public:
  Layouts(unsigned seed, std::string nvme_dir) : nvme_dir_(std::move(nvme_dir)), random_(seed) {}

  // One that the small deck's 8 blocks, 4 heads and 8 samples allow.
  std::vector<std::string> draw() {
    const int pp = pick({1, 2, 4}), dp = pick({1, 2}), tp = pick({1, 2});
    const std::string schedule =
        pick<std::string>({"gpipe", "1f1b", "interleaved", "breadth_first", "zero_bubble_h1"});
    const bool many = schedule == "interleaved" || schedule == "breadth_first";
    // Interleaving needs micro-batches in multiples of the pipeline.
    const int micro = schedule == "interleaved" ? 8 / dp / std::min(pp, 8 / dp) : pick({1, 2});
    const std::string optimizer = pick<std::string>({"device", "host", "nvme"});
    const std::string weights =
        optimizer == "device" ? optimizer : pick<std::string>({"device", "host", "nvme"});
    return {format("memory.optimizer=\"{}\"", optimizer),
            format("memory.weights=\"{}\"", weights),
            format("memory.activations=\"{}\"", pick<std::string>({"working", "host"})),
            format("memory.nvme_dir=\"{}\"", nvme_dir_),
            format("parallel.pipeline={}", pp),
            format("parallel.data={}", dp),
            format("parallel.tensor={}", tp),
            format("parallel.schedule=\"{}\"", schedule),
            format("parallel.chunks={}", many ? 2 : 1),
            format("batch.micro={}", micro),
            format("memory.recompute=\"{}\"", pick<std::string>({"none", "layers", "selective"})),
            format("optimizer.zero={}", pick({0, 1})),
            format("checkpoint.pool=\"{}\"", pick<std::string>({"64 KiB", "1 GB"})),
            format("parallel.sequence={}", pick<std::string>({"true", "false"}))};
  }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[random_() % choices.size()];
  }

 private:
  std::string nvme_dir_;
  std::mt19937 random_;
};

std::string text_of(const std::vector<std::string>& overrides) { return join(overrides, " "); }

TEST(Resharding, ARunContinuesOnAnyOtherLayout) {
  Folder folder;
  const std::vector<std::string> common = {"run.steps=6", "optimizer.schedule=\"constant\"",
                                           "model.drop_path=0.1", "checkpoint.at_end=true"};
  const auto run = [&](const std::string& name, std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), common.begin(), common.end());
    overrides.push_back(format("run.name=\"{}\"", name));
    return run_as_threads(testing::kSmallDeck, overrides, folder.path());
  };
  const RunOutcome unbroken = run("unbroken", {});
  Layouts layouts(3, (folder.path() / "nvme").string());
  const int pairs = testing::full_tests() ? 30 : 6;
  for (int pair = 0; pair < pairs; ++pair) {
    const std::string name = format("pair{}", pair);
    std::vector<std::string> before = layouts.draw(), after = layouts.draw();
    SCOPED_TRACE(text_of(before) + "  ->  " + text_of(after));
    before.push_back("run.steps=3");
    std::vector<double> losses = run(name, before).losses;
    ASSERT_EQ(losses.size(), 3u);
    const RunOutcome rest = run(name, after);
    losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
    ASSERT_EQ(losses.size(), unbroken.losses.size());
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], unbroken.losses[i], 1e-5 * unbroken.losses[i]) << "step " << i;
    EXPECT_NEAR(rest.summary.evaluation->loss, unbroken.summary.evaluation->loss, 1e-4);
  }
}

TEST(Resharding, AnotherTypeStartsItsOwnLossScale) {
  Folder folder;
  run_as_threads(testing::kSmallDeck, {"run.steps=2", "checkpoint.at_end=true"}, folder.path());
  const RunOutcome rest =
      run_as_threads(testing::kSmallDeck, {"run.steps=4", "precision.type=\"f16\""}, folder.path());
  ASSERT_EQ(rest.records.size(), 2u);
  EXPECT_EQ(rest.records.front().loss_scale, 65536);
  EXPECT_FALSE(rest.records.front().skipped);
}

}  // namespace
}  // namespace voltapile
