// The watch with ranks as threads, and the stacks that it writes.
#include "voltapile/watch/watch.hpp"

#include <atomic>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "voltapile/base/stacks.hpp"

namespace voltapile {
namespace {

using namespace std::chrono_literals;

class Folder {
 public:
  ~Folder() { std::filesystem::remove_all(path); }
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / format("voltapile_watch_test_{}", getpid());
};

std::string text_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST(Watch, ends_a_job_whose_rank_stays_away_and_names_that_rank) {
  const Folder folder;
  std::atomic<int> given_up = 0;
  const auto job = [&](std::unique_ptr<Communicator> world) {
    Watch watch(*world, {});
    watch.set_timeout(0.3);
    watch.set_places({"rank 0 (dp0)", "rank 1 (dp1)", "rank 2 (dp2)"});
    watch.set_folder(folder.path);
    watch.set_stage(Stage::training);
    const auto hang = watch.on_hang([&](const std::string& verdict) {
      EXPECT_NE(verdict.find("rank 1 (dp1)"), std::string::npos) << verdict;
      EXPECT_NE(verdict.find("is waited for"), std::string::npos) << verdict;
      ++given_up;
    });
    world->barrier();
    if (world->rank() != 1) world->barrier();
    while (true) {
      world->poll_error();
      std::this_thread::sleep_for(5ms);
    }
  };
  EXPECT_THROW(spawn_ranks(3, job), PeerFailure);
  EXPECT_EQ(given_up, 1);
  const std::string text = text_of(folder.path / "rank_00001.txt");
  EXPECT_NE(text.find("rank 1 (dp1) on "), std::string::npos) << text;
  EXPECT_NE(text.find("barrier, call"), std::string::npos) << text;
  EXPECT_NE(text.find("Threads"), std::string::npos) << text;
}

TEST(Watch, leaves_a_job_alone_that_moves) {
  for (const bool lanes : {false, true}) {
    spawn_ranks(2, [lanes](std::unique_ptr<Communicator> world) {
      Watch watch(*world, {});
      watch.set_timeout(0.2);
      watch.set_stage(Stage::training);
      std::atomic<int> now = 0;
      const auto subject = watch.observe([&](RankState& state) {
        state.lanes.push_back({.lane = "compute", .what = format("work {}", now.load())});
      });
      for (int i = 0; i < 12; ++i) {
        std::this_thread::sleep_for(100ms);
        if (lanes) now = i;
        else world->barrier();
      }
      world->barrier();
    });
  }
}

TEST(Watch, leaves_a_job_alone_in_which_one_rank_works_for_the_others) {
  spawn_ranks(3, [](std::unique_ptr<Communicator> world) {
    Watch watch(*world, {});
    watch.set_timeout(0.3);
    watch.set_stage(Stage::training);
    // Rank 2 reads, say, and the others wait for it.
    for (int i = 0; world->rank() == 2 && i < 10; ++i) {
      std::this_thread::sleep_for(100ms);
      watch.step_done(i, 0);
    }
    world->barrier();
  });
}

TEST(Watch, waits_longer_where_no_step_is_measured) {
  EXPECT_EQ(hang_limit_seconds(Stage::training, {}, 0.1), 60);
  EXPECT_EQ(hang_limit_seconds(Stage::training, {}, 10), 200);
  EXPECT_EQ(hang_limit_seconds(Stage::saving, {}, 10), 1800);
  EXPECT_EQ(hang_limit_seconds(Stage::evaluation, {}, 100), 2000);
  EXPECT_EQ(hang_limit_seconds(Stage::training, 5, 10), 5);
  EXPECT_EQ(hang_limit_seconds(Stage::first_step, 5, 10), 50);
}

}  // namespace

// In a named namespace: only such functions have names in a program.
void wait_here(std::future<void> end, std::promise<int>& thread) {
  thread.set_value(gettid());
  end.wait();
}

namespace {

TEST(Stacks, show_where_a_thread_waits) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer holds a signal back until its thread has waited";
#endif
  prepare_thread_stacks();
  std::promise<void> end;
  std::promise<int> number;
  std::thread thread([&] { wait_here(end.get_future(), number); });
  const int id = number.get_future().get();
  for (int round = 0; round < 3; ++round) {
    std::string all;
    for (const ThreadStack& stack : thread_stacks(2s)) {
      if (stack.thread != id) continue;
      for (const std::string& frame : stack.frames) all += frame + "\n";
      EXPECT_FALSE(stack.state.empty());
    }
    EXPECT_NE(all.find("voltapile::wait_here("), std::string::npos) << all;
  }
  end.set_value();
  thread.join();
}

}  // namespace
}  // namespace voltapile
