// kill -9 at random moments of saving: whatever is visible afterwards must verify and load.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "voltapile/checkpoint/checkpoint.hpp"

#include "sample.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

// Saves step after step for ever, each step twice so that replacing is met too; tells each save.
[[noreturn]] void save_for_ever(const fs::path& checkpoints, int tell) {
  const auto latest = latest_checkpoint(checkpoints);
  int64_t step = latest ? read_run_state(*latest).step : 1;
  while (true) {
    for (int twice = 0; twice < 2; ++twice) {
      sample::save(checkpoints, {1, 2, 1}, step, 1, 2);
      if (write(tell, "x", 1) != 1) std::_Exit(1);
    }
    ++step;
  }
}

void expect_whole(const fs::path& checkpoints, int kill) {
  int visible = 0;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step_") || name.find('.') != std::string::npos) continue;
    ++visible;
    EXPECT_EQ(verify_checkpoint(entry.path()).faults, std::vector<std::string>{})
        << "kill " << kill << ": " << name;
  }
  const auto latest = latest_checkpoint(checkpoints);
  ASSERT_TRUE(latest) << "kill " << kill;
  EXPECT_EQ(sample::load_wrong(*latest, {1, 1, 2}, read_run_state(*latest).step, 1), 0)
      << "kill " << kill << " with " << visible << " checkpoints";
}

TEST(Kill, NeverLeavesAVisibleCheckpointThatDoesNotVerify) {
  const int kills = sample::full_run() ? 200 : 20;
  const sample::Folder folder;
  std::mt19937_64 random(3);
  for (int kill = 0; kill < kills; ++kill) {
    int tell[2];
    ASSERT_EQ(pipe(tell), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(tell[0]);
      save_for_ever(folder.path(), tell[1]);
    }
    close(tell[1]);
    // The first save of each life is a replacement; then some moment within the next few.
    char told;
    ASSERT_EQ(read(tell[0], &told, 1), 1);
    usleep(static_cast<useconds_t>(random() % 60'000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    close(tell[0]);
    expect_whole(folder.path(), kill);
  }
}

}  // namespace
}  // namespace voltapile
