// Saves of state that lives on the host or on nvme, while training goes on: each is of one step,
// changes nothing, and lets go of training however it ends.
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/checkpoint/interchange.hpp"

#include "small_run.hpp"

namespace voltapile {
namespace {

using testing::Folder;
using testing::run_as_threads;
using testing::RunOutcome;

struct Case {
  std::string name;
  std::vector<std::string> overrides;
};

// Those whose state stays where it is while it is saved.
std::vector<Case> cases() {
  return {
      {"host", {"memory.optimizer=\"host\"", "optimizer.ema=0.9"}},
      {"int8", {"memory.optimizer=\"host\"", "optimizer.moments=\"int8\"", "parallel.data=2"}},
      {"shards",
       {"memory.optimizer=\"host\"", "parallel.pipeline=2", "parallel.data=2", "optimizer.zero=1",
        "parallel.schedule=\"breadth_first\"", "parallel.chunks=2", "memory.weights=\"host\""}},
      {"nvme", {"memory.optimizer=\"nvme\"", "parallel.tensor=2", "parallel.pipeline=2"}},
      {"nvme8", {"memory.optimizer=\"nvme\"", "optimizer.moments=\"int8\""}},
  };
}

class Saving : public ::testing::Test {
 protected:
  RunOutcome run(const std::string& name, const Case& of, std::vector<std::string> more,
                 const std::function<void()>& before_write = {}) {
    std::vector<std::string> all = of.overrides;
    all.insert(all.end(), {"optimizer.schedule=\"constant\"", format("run.name=\"{}\"", name),
                           format("memory.nvme_dir=\"{}\"", (folder_.path() / "nvme").string())});
    all.insert(all.end(), more.begin(), more.end());
    TrainOptions options;
    options.before_write = before_write;
    return run_as_threads(testing::kSmallDeck, all, folder_.path(), false, options);
  }
  std::filesystem::path checkpoint(const std::string& name, int64_t step) const {
    return folder_.path() / name / "checkpoints" / format("step_{:08d}", step);
  }

  Folder folder_;
};

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

// The smallest pool holds a part of the state only, so updates wait; the other holds all of it, and
// most of it is written after it has changed at home.
TEST_F(Saving, IsOfOneStepAndChangesNothingHoweverSlowTheDisk) {
  for (const Case& of : cases()) {
    const RunOutcome plain = run("plain_" + of.name, of, {"run.steps=7"});
    run("stopped_" + of.name, of, {"run.steps=3", "checkpoint.at_end=true"});
    for (const char* pool : {"64 KiB", "1 GB"}) {
      const std::string name = format("saving_{}_{}", of.name, pool[0]);
      const RunOutcome saving = run(
          name, of,
          {"run.steps=7", "checkpoint.every_steps=3", format("checkpoint.pool=\"{}\"", pool)}, nap);
      EXPECT_EQ(saving.losses, plain.losses) << name;
      const CheckpointDifference difference = compare_checkpoints(
          checkpoint(name, 3), checkpoint("stopped_" + of.name, 3), Compared::weights_and_moments);
      EXPECT_TRUE(difference.equal()) << name << "\n" << describe(difference);
      EXPECT_TRUE(verify_checkpoint(checkpoint(name, 6), Depth::datasets).faults.empty()) << name;
    }
  }
}

// With room for all of the state, not even a disk that stands still holds training up.
TEST_F(Saving, GoesOnBesideTrainingWhereThePoolHoldsAll) {
  std::atomic<int64_t> seen = 0;
  TrainOptions options;
  options.on_step = [&](const TrainRecord& record) { seen = record.step; };
  options.before_write = [&] {
    while (seen < 5) nap();  // which needs the updates of step 4
  };
  const RunOutcome outcome = run_as_threads(
      testing::kSmallDeck, {"memory.optimizer=\"host\"", "run.steps=6", "checkpoint.every_steps=3"},
      folder_.path(), false, options);
  EXPECT_EQ(outcome.summary.steps, 6);
  EXPECT_TRUE(verify_checkpoint(checkpoint("small", 3)).faults.empty());
}

TEST_F(Saving, ThatFailsLetsGoOfTraining) {
  for (const Case& of : cases()) {
    const RunOutcome plain = run("plain_" + of.name, of, {"run.steps=7"});
    std::atomic<int> writes = 0;
    const auto fail = [&] {
      nap();
      if (++writes % 20 == 0) throw Error(ExitCode::failure, "the disk is on fire");
    };
    const std::vector<std::string> small{"run.steps=7", "checkpoint.every_steps=3",
                                         "checkpoint.pool=\"64 KiB\""};
    std::vector<std::string> on = small;
    on.push_back("checkpoint.on_error=\"continue\"");
    EXPECT_EQ(run("on_" + of.name, of, on, fail).losses, plain.losses) << of.name;
    EXPECT_FALSE(std::filesystem::exists(checkpoint("on_" + of.name, 3))) << of.name;
    std::string said;
    try {
      run("stop_" + of.name, of, small, fail);
    } catch (const Error& error) { said = error.what(); }
    EXPECT_NE(said.find("the disk is on fire"), std::string::npos) << of.name << ": " << said;
  }
}

TEST_F(Saving, DoesNotHoldUpARunThatFails) {
  for (const Case& of : cases()) {
    TrainOptions options;
    options.before_write = nap;
    options.on_step = [](const TrainRecord& record) {
      if (record.step == 4) throw Error(ExitCode::failure, "rank 0 has had enough");
    };
    std::vector<std::string> all = of.overrides;
    all.insert(all.end(), {"run.steps=9", "checkpoint.every_steps=3", "checkpoint.pool=\"64 KiB\"",
                           format("run.name=\"{}\"", of.name),
                           format("memory.nvme_dir=\"{}\"", (folder_.path() / "nvme").string())});
    std::string said;
    try {
      run_as_threads(testing::kSmallDeck, all, folder_.path(), false, options);
    } catch (const Error& error) { said = error.what(); }
    EXPECT_NE(said.find("rank 0 has had enough"), std::string::npos) << of.name << ": " << said;
  }
}

TEST_F(Saving, EndsInACheckpointWhenTimeIsUp) {
  const Case of{"host", {"memory.optimizer=\"host\"", "parallel.pipeline=2"}};
  const RunOutcome outcome = run("short", of,
                                 {"run.steps=100000", "run.walltime=\"4s\"",
                                  "checkpoint.every_steps=3", "checkpoint.pool=\"64 KiB\""},
                                 nap);
  EXPECT_EQ(outcome.summary.code, ExitCode::stopped_early);
  const std::filesystem::path last = checkpoint("short", outcome.summary.steps);
  EXPECT_TRUE(verify_checkpoint(last).faults.empty());
  run("as_long", of, {format("run.steps={}", outcome.summary.steps), "checkpoint.at_end=true"});
  EXPECT_TRUE(compare_checkpoints(last, checkpoint("as_long", outcome.summary.steps),
                                  Compared::weights_and_moments)
                  .equal());
}

}  // namespace
}  // namespace voltapile
