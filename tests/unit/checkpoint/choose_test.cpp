// Which checkpoints stay, and from which a run continues when some are damaged.
#include <array>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "voltapile/checkpoint/checkpoint.hpp"

#include "sample.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

class Choose : public ::testing::Test {
 protected:
  Choose() {
    for (const int64_t step : {10, 20, 30}) sample::save(path(), mesh_, step, 1);
  }
  const fs::path& path() const { return folder_.path(); }
  fs::path step(const char* number) const { return path() / (std::string("step_000000") + number); }

  // What three ranks choose; all alike, or the message of the error that all throw.
  struct Answer {
    std::optional<Chosen> chosen;
    std::string error;
  };
  Answer choose(OnDamage on_damage) {
    std::array<Answer, 3> answers;
    spawn_ranks(3, [&](std::unique_ptr<Communicator> world) {
      Answer& answer = answers[static_cast<size_t>(world->rank())];
      try {
        answer.chosen = choose_checkpoint(path(), *world, on_damage);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_data);
        answer.error = error.what();
      }
    });
    for (const Answer& answer : answers) {
      EXPECT_EQ(answer.error, answers[0].error);
      EXPECT_EQ(answer.chosen ? answer.chosen->folder : "",
                answers[0].chosen ? answers[0].chosen->folder : "");
    }
    return answers[0];
  }
  static void damage(const fs::path& file) {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
    bytes.seekg(middle);
    const auto old = static_cast<char>(bytes.get());
    bytes.seekp(middle);
    bytes.put(static_cast<char>(old ^ 4));
  }

  Mesh mesh_{1, 2, 2};
  sample::Folder folder_;
};

TEST_F(Choose, TheLatestIsTakenWhenItIsGood) {
  for (const OnDamage on_damage : {OnDamage::refuse, OnDamage::fall_back}) {
    const Answer answer = choose(on_damage);
    ASSERT_TRUE(answer.chosen) << answer.error;
    EXPECT_EQ(answer.chosen->folder, step("30"));
    EXPECT_EQ(answer.chosen->state.step, 30);
    EXPECT_TRUE(answer.chosen->passed_over.empty());
  }
}

TEST_F(Choose, LatestCountsEvenWhenHigherStepsExist) {
  fs::remove(path() / "latest");
  fs::create_directory_symlink("step_00000010", path() / "latest");
  EXPECT_EQ(choose(OnDamage::fall_back).chosen->folder, step("10"));
}

TEST_F(Choose, WithoutLatestThereIsNone) {
  fs::remove(path() / "latest");
  const Answer answer = choose(OnDamage::fall_back);
  EXPECT_FALSE(answer.chosen);
  EXPECT_EQ(answer.error, "");
}

TEST_F(Choose, ADamagedShardIsRefusedAndNamed) {
  damage(step("30") / "shard_00002.h5");
  const Answer answer = choose(OnDamage::refuse);
  EXPECT_NE(answer.error.find("shard_00002.h5"), std::string::npos) << answer.error;
  EXPECT_NE(answer.error.find("checkpoint.fallback = true"), std::string::npos) << answer.error;
}

TEST_F(Choose, TheNewestGoodOneIsTakenWhereTheDeckSaysSo) {
  damage(step("30") / "shard_00003.h5");
  damage(step("20") / "index.h5");
  const Answer answer = choose(OnDamage::fall_back);
  ASSERT_TRUE(answer.chosen) << answer.error;
  EXPECT_EQ(answer.chosen->folder, step("10"));
  EXPECT_EQ(answer.chosen->state.step, 10);
  ASSERT_EQ(answer.chosen->passed_over.size(), 2u);
  EXPECT_NE(answer.chosen->passed_over[0].find("shard_00003.h5"), std::string::npos);
  EXPECT_NE(answer.chosen->passed_over[1].find("step_00000020/index.h5"), std::string::npos);
}

TEST_F(Choose, ALatestThatNamesNothingIsDamage) {
  fs::remove_all(step("30"));
  EXPECT_NE(choose(OnDamage::refuse).error.find("step_00000030"), std::string::npos);
  EXPECT_EQ(choose(OnDamage::fall_back).chosen->folder, step("20"));
}

TEST_F(Choose, WhereNoneIsGoodAllAreNamed) {
  for (const char* number : {"10", "20", "30"}) fs::remove(step(number) / "shard_00001.h5");
  const Answer answer = choose(OnDamage::fall_back);
  EXPECT_FALSE(answer.chosen);
  for (const char* number : {"10", "20", "30"})
    EXPECT_NE(answer.error.find((step(number) / "shard_00001.h5").string()), std::string::npos)
        << answer.error;
}

std::set<std::string> entries(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

TEST_F(Choose, GoingBackTakesTheNewestUpToAStepAndRemovesLaterOnes) {
  const auto go_back = [&](int64_t last) {
    std::array<std::optional<fs::path>, 3> answers;
    spawn_ranks(3, [&](std::unique_ptr<Communicator> world) {
      answers[static_cast<size_t>(world->rank())] = rewind_checkpoints(path(), last, *world);
    });
    EXPECT_EQ(answers[1], answers[0]);
    EXPECT_EQ(answers[2], answers[0]);
    return answers[0];
  };
  EXPECT_EQ(go_back(29), step("20"));
  EXPECT_EQ(latest_checkpoint(path()), step("20"));
  EXPECT_FALSE(fs::exists(step("30")));
  EXPECT_TRUE(fs::exists(step("10")));
  // Nothing says that a later one is bad, and everything else would be lost.
  EXPECT_EQ(go_back(9), step("10"));
  EXPECT_FALSE(fs::exists(step("20")));
  sample::save(path(), mesh_, 20, 1);
  damage(step("20") / "shard_00001.h5");
  EXPECT_EQ(go_back(20), step("10"));
  EXPECT_EQ(latest_checkpoint(path()), step("10"));
  damage(step("10") / "shard_00001.h5");
  EXPECT_THROW(go_back(20), Error);
  fs::remove_all(path());
  EXPECT_EQ(go_back(20), std::nullopt);
}

TEST(Keep, MultiplesOfEveryStayBesideTheLastOnes) {
  const sample::Folder folder;
  for (int64_t step = 1; step <= 9; ++step) sample::save(folder.path(), {1, 1, 1}, step, 1, 2, 4);
  std::set<std::string> wanted = {"step_00000004", "step_00000008", "step_00000009", "latest"};
  EXPECT_EQ(entries(folder.path()), wanted);
  sample::save(folder.path(), {1, 1, 1}, 10, 1, 2, 4);
  wanted.insert("step_00000010");
  EXPECT_EQ(entries(folder.path()), wanted);
}

TEST(Keep, AFolderThatIsGoneIsNotMadeAgain) {
  const sample::Folder folder;
  const fs::path run = folder.path() / "run";
  fs::create_directory(run);
  sample::save(run / "checkpoints", {1, 1, 1}, 1, 1);
  fs::remove_all(run / "checkpoints");
  sample::save(run / "checkpoints", {1, 1, 1}, 2, 1);
  fs::remove_all(run);
  try {
    sample::save(run / "checkpoints", {1, 1, 1}, 3, 1);
    ADD_FAILURE() << "saved";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::failure);
    EXPECT_NE(std::string(error.what()).find(run.string() + ": this folder is gone"),
              std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(fs::exists(run));
}

}  // namespace
}  // namespace voltapile
