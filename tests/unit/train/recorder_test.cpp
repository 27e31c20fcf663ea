// The steps of trace.steps on ranks as threads, from the engine's clocks to trace.h5.
#include "recorder.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "voltapile/base/clock.hpp"

#include "../../support/small_run.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kPipeline = {"parallel.pipeline=2", "parallel.data=2",
                                            "batch.global=16", "run.steps=6"};

std::vector<std::string> traced(std::vector<std::string> overrides, const std::string& steps) {
  overrides.push_back(format("trace.steps=\"{}\"", steps));
  return overrides;
}

TEST(Meet, FindsTheOffsetOfAnotherClock) {
  spawn_ranks(3, [](std::unique_ptr<Communicator> world) {
    const double offset = 1000.0 * world->rank();
    const ClockOffset found = fit_offset(meet(
        *world, [&] { return now_seconds() + offset; }, 16));
    EXPECT_NEAR(found.seconds, offset, found.skew + 1e-6);
    EXPECT_LT(found.skew, 0.5);
  });
}

TEST(Recorder, WritesEveryInstructionOfItsSteps) {
  const testing::Folder folder;
  testing::run_as_threads(testing::kSmallDeck, traced(kPipeline, "2:5"), folder.path());
  const Trace trace = read_trace(folder.path() / "small" / "trace.h5");
  const Plan plan = make_plan(parse_deck(trace.deck, "trace.h5"));
  ASSERT_EQ(trace.ranks.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    const RankRecord& record = trace.ranks[static_cast<size_t>(rank)];
    EXPECT_EQ(record.place, plan.mesh.rank_text(rank));
    const Program& program = plan.train.programs[static_cast<size_t>(plan.mesh.coord(rank).pp)];
    for (int64_t step = 2; step < 5; ++step) {
      Program seen;
      double flops = 0;
      int waits = 0;
      for (const TraceEvent& event : record.events) {
        EXPECT_LE(event.begin_ns, event.end_ns);
        if (event.step != step) continue;
        waits += event.name == static_cast<int32_t>(HostWork::step_wait);
        if (event.name >= kOpCount) continue;
        seen.push_back({static_cast<Op>(event.name), static_cast<Lane>(event.lane),
                        static_cast<int16_t>(event.chunk), static_cast<int16_t>(event.micro)});
        flops += event.flops;
        if (seen.back().op == Op::send_activation) { EXPECT_GT(event.bytes, 0); }
      }
      EXPECT_EQ(seen, program) << "rank " << rank << ", step " << step;
      EXPECT_GT(flops, 0);
      EXPECT_EQ(waits, 1);
    }
    EXPECT_EQ(record.samples.size(), 3u);
    EXPECT_FALSE(record.memory.empty());
  }
  EXPECT_EQ(trace.first_step(), 2);
  EXPECT_EQ(trace.end_step(), 5);
}

TEST(Recorder, EndsWithTheRunAndKeepsEarlierWindows) {
  const testing::Folder folder;
  auto deck = kPipeline;
  deck.push_back("checkpoint.at_end=true");
  testing::run_as_threads(testing::kSmallDeck, traced(deck, "5:100"), folder.path());
  const fs::path path = folder.path() / "small" / "trace.h5";
  EXPECT_EQ(read_trace(path).end_step(), 7);
  deck.push_back("run.steps=9");
  testing::run_as_threads(testing::kSmallDeck, traced(deck, "8:9"), folder.path());
  const Trace trace = read_trace(path);
  EXPECT_EQ(trace.first_step(), 5);
  EXPECT_EQ(trace.end_step(), 9);
}

TEST(Recorder, SetsAFileAsideThatItCannotContinue) {
  const testing::Folder folder;
  fs::create_directories(folder.path() / "small");
  std::ofstream(folder.path() / "small" / "trace.h5") << "torn";
  testing::run_as_threads(testing::kSmallDeck, traced(kPipeline, "2:3"), folder.path());
  EXPECT_EQ(read_trace(folder.path() / "small" / "trace.h5").first_step(), 2);
  EXPECT_TRUE(fs::exists(folder.path() / "small" / "trace.1.h5"));
}

TEST(Recorder, LosesARecordRatherThanARun) {
  const testing::Folder folder;
  const fs::path run = folder.path() / "small";
  testing::run_as_threads(testing::kSmallDeck, traced(kPipeline, "1:2"), folder.path());
  fs::rename(run / "trace.h5", folder.path() / "kept.h5");
  fs::create_directories(run / "trace.h5.partial" / "in_the_way");
  std::vector<std::string> longer = traced(kPipeline, "1:100");
  longer.push_back("run.steps=7");
  const auto rest = testing::run_as_threads(testing::kSmallDeck, longer, folder.path());
  EXPECT_EQ(rest.summary.steps, 7);
  EXPECT_FALSE(fs::exists(run / "trace.h5"));
}

TEST(Recorder, DoesNotChangeWhatIsLearned) {
  const testing::Folder a, b;
  const auto plain = testing::run_as_threads(testing::kSmallDeck, kPipeline, a.path());
  const auto recorded =
      testing::run_as_threads(testing::kSmallDeck, traced(kPipeline, "1:100"), b.path());
  EXPECT_EQ(plain.losses, recorded.losses);
}

}  // namespace
}  // namespace voltapile
