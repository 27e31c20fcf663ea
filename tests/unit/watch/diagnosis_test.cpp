// Who holds up a job, told from what its ranks say of themselves.
#include "voltapile/watch/diagnosis.hpp"

#include <gtest/gtest.h>

#include "voltapile/base/format.hpp"

namespace voltapile {
namespace {

// Four ranks that all wait in the 90th call of the norm of step 12.
std::vector<Witness> waiting_ranks() {
  std::vector<Witness> ranks(4);
  for (int i = 0; i < 4; ++i) {
    Witness& rank = ranks[static_cast<size_t>(i)];
    rank.place = format("rank {} (pp{} dp{} tp0)", i, i / 2, i % 2);
    rank.host = format("node{}", i);
    rank.known = rank.answers = true;
    rank.state.stage = Stage::training;
    rank.state.step = 11;
    rank.state.lanes = {
        {.lane = "dp", .what = "norm", .step = 12, .begun = true, .for_others = true}};
    rank.state.calls = {{"norm", "all_reduce", 90, 89},
                        {format("dp(pp{} tp0)", i / 2), "reduce_scatter", 45, 45}};
  }
  return ranks;
}

bool says(const Diagnosis& diagnosis, const std::string& text) {
  return diagnosis.verdict.find(text) != std::string::npos;
}

TEST(Diagnosis, names_a_rank_that_does_not_answer_with_host_and_last_instruction) {
  auto ranks = waiting_ranks();
  ranks[2].answers = false;
  ranks[2].silent_seconds = 7;
  ranks[2].state.lanes = {
      {.lane = "compute", .what = "forward(chunk 1, micro 3)", .step = 12, .begun = true}};
  const Diagnosis diagnosis = diagnose(ranks);
  EXPECT_EQ(diagnosis.ranks, std::vector{2});
  EXPECT_TRUE(says(diagnosis, "rank 2 (pp1 dp0 tp0) on node2 does not answer for 7 s"))
      << diagnosis.verdict;
  EXPECT_TRUE(says(diagnosis, "forward(chunk 1, micro 3) of step 12")) << diagnosis.verdict;
  EXPECT_TRUE(says(diagnosis, "ranks 0, 1, 3 are in norm of step 12")) << diagnosis.verdict;
}

TEST(Diagnosis, names_the_rank_that_others_wait_for) {
  auto ranks = waiting_ranks();
  // Rank 3 has not come to the norm: it waits for rank 1's half of the sum, which computes.
  ranks[3].state.calls = {{"norm", "all_reduce", 88, 88}, {"edge", "exchange", 7, 6}};
  ranks[1].state.calls = {{"norm", "all_reduce", 88, 88}, {"edge", "exchange", 6, 6}};
  ranks[1].state.lanes = {
      {.lane = "compute", .what = "backward(chunk 0, micro 0)", .step = 12, .begun = true}};
  const Diagnosis diagnosis = diagnose(ranks);
  EXPECT_EQ(diagnosis.ranks, std::vector{1});
  EXPECT_TRUE(says(diagnosis, "rank 1 (pp0 dp1 tp0) on node1 is waited for")) << diagnosis.verdict;
  EXPECT_TRUE(says(diagnosis, "backward(chunk 0, micro 0) of step 12")) << diagnosis.verdict;
}

TEST(Diagnosis, goes_by_steps_and_lanes_where_calls_are_not_counted) {
  auto ranks = waiting_ranks();
  for (Witness& rank : ranks) rank.state.calls.clear();
  auto late = ranks;
  late[1].state.step = 10;
  EXPECT_EQ(diagnose(late).ranks, std::vector{1});
  EXPECT_TRUE(says(diagnose(late), "is behind"));
  auto busy = ranks;
  busy[3].state.lanes = {
      {.lane = "compute", .what = "forward(chunk 1, micro 0)", .step = 12, .begun = true}};
  EXPECT_EQ(diagnose(busy).ranks, std::vector{3});
  busy[3].state.lanes.clear();
  EXPECT_EQ(diagnose(busy).ranks, std::vector{3});
  EXPECT_TRUE(says(diagnose(busy), "training, after step 11")) << diagnose(busy).verdict;
}

TEST(Diagnosis, blames_nobody_when_nobody_differs) {
  const Diagnosis diagnosis = diagnose(waiting_ranks());
  EXPECT_TRUE(diagnosis.ranks.empty());
  EXPECT_TRUE(says(diagnosis, "no rank differs")) << diagnosis.verdict;
  auto silent = waiting_ranks();
  for (Witness& rank : silent) rank.answers = false;
  EXPECT_TRUE(diagnose(silent).ranks.empty());
}

TEST(Diagnosis, shows_ranks_with_the_same_state_together) {
  std::vector<Witness> ranks;
  for (int i = 0; i < 16; ++i)
    for (const Witness& rank : waiting_ranks()) ranks.push_back(rank);
  ranks[17].state.lanes[0].what = "update(chunk 0)";
  const Diagnosis diagnosis = diagnose(ranks);
  ASSERT_EQ(diagnosis.lines.size(), 2u);
  EXPECT_EQ(diagnosis.lines[1].substr(0, 18), "ranks 0-16, 18-63:") << diagnosis.lines[1];
}

TEST(RankState, comes_back_from_its_text) {
  RankState state = waiting_ranks()[1].state;
  state.stage = Stage::saving;
  state.stalled_seconds = 1.5;
  state.bytes = 123456789;
  state.answers = true;
  const auto read = read_rank_state(write_rank_state(state));
  ASSERT_TRUE(read);
  EXPECT_FALSE(read->moved_since(state));
  EXPECT_EQ(read->stage, Stage::saving);
  EXPECT_EQ(read->stalled_seconds, 1.5);
  EXPECT_TRUE(read->answers);
  EXPECT_EQ(read->calls[0].communicator, "norm");
}

TEST(RankState, refuses_what_is_not_one) {
  for (const char* text : {"", "ask", "9 1 0 0 0\n", "-1 1 0 0 0\n", "2 1 0 0 0\nlane dp x\n",
                           "2 1 0 0 0\nnonsense\n", "2 1 0 0 0\ncall 1\n"})
    EXPECT_FALSE(read_rank_state(text)) << text;
  EXPECT_TRUE(read_rank_state("2 1 0 0 0\n"));
}

}  // namespace
}  // namespace voltapile
