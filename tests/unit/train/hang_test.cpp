// A training run on ranks as threads, one of which stands still.
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "small_run.hpp"

namespace voltapile {
namespace {

TEST(Hang, ends_a_run_on_threads_and_names_the_rank_that_stands_still) {
  const testing::Folder folder;
  const Deck deck =
      parse_deck(testing::kSmallDeck, "test.toml",
                 {"parallel.pipeline=2", "parallel.data=2", "run.steps=100",
                  "run.hang_timeout=\"1s\"", format("run.dir=\"{}\"", folder.path().string())});
  std::string said;
  try {
    spawn_ranks(ranks_of(deck), [&](std::unique_ptr<Communicator> world) {
      TrainOptions options{.quiet = true};
      if (world->rank() == 0) {
        options.on_step = [](const TrainRecord& record) {
          if (record.step == 3) std::this_thread::sleep_for(std::chrono::seconds(8));
        };
      }
      train([&] { return deck; }, std::move(world), options);
    });
  } catch (const Error& error) { said = error.what(); }
  EXPECT_NE(said.find("rank 0 (pp0 dp0 tp0) on "), std::string::npos) << said;
  EXPECT_NE(said.find("is waited for"), std::string::npos) << said;
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_TRUE(
        std::filesystem::exists(folder.path() / "small/hang" / format("rank_{:05}.txt", rank)));
}

}  // namespace
}  // namespace voltapile
