// What differs between ranks is found, shown as a table, and weighed.
#include "voltapile/watch/fingerprint.hpp"

#include <gtest/gtest.h>

namespace voltapile {
namespace {

std::vector<std::vector<Fact>> alike(int ranks) {
  return std::vector<std::vector<Fact>>(
      static_cast<size_t>(ranks),
      {{.name = "version", .value = "1.0", .weight = Weight::fatal},
       {.name = "NCCL", .value = "2.20"},
       {.name = "free memory", .value = "60 GB", .number = 60e9, .tolerance = 12e9}});
}

TEST(Fingerprint, is_quiet_where_nothing_differs) {
  EXPECT_EQ(compare(alike(4)).table, "");
  auto near = alike(4);
  near[1][2] = {.name = "free memory", .value = "55 GB", .number = 55e9, .tolerance = 11e9};
  EXPECT_EQ(compare(near).table, "");
}

TEST(Fingerprint, shows_who_has_which_value) {
  auto ranks = alike(6);
  ranks[3][1].value = "2.18";
  const Differences found = compare(ranks);
  EXPECT_FALSE(found.fatal);
  EXPECT_EQ(found.table,
            "\n  what          ranks           value"
            "\n  NCCL          0-2, 4, 5       2.20"
            "\n                3               2.18");
}

TEST(Fingerprint, is_fatal_where_a_fact_is) {
  auto ranks = alike(3);
  ranks[2][0].value = "1.1";
  EXPECT_TRUE(compare(ranks).fatal);
  auto lacking = alike(3);
  lacking[1].erase(lacking[1].begin());
  EXPECT_TRUE(compare(lacking).fatal);
  EXPECT_NE(compare(lacking).table.find("none"), std::string::npos);
}

TEST(Fingerprint, measures_numbers_against_the_median) {
  auto ranks = alike(5);
  ranks[0][2] = {.name = "free memory", .value = "10 GB", .number = 10e9, .tolerance = 2e9};
  const Differences found = compare(ranks);
  EXPECT_EQ(found.table,
            "\n  what          ranks           value"
            "\n  free memory   0               10 GB"
            "\n                1-4             60 GB");
}

TEST(Fingerprint, is_compared_by_all_ranks_alike) {
  spawn_ranks(3, [](std::unique_ptr<Communicator> world) {
    auto mine = alike(1)[0];
    compare_ranks(*world, mine);
    if (world->rank() == 1) mine[0].value = "1.1\twith a tab\nand a line";
    EXPECT_THROW(compare_ranks(*world, mine), SharedError);
  });
}

TEST(Fingerprint, knows_this_program_and_machine) {
  const auto facts = build_facts();
  EXPECT_EQ(facts[1].name, "build");
  EXPECT_EQ(facts[1].value.size(), 16u) << facts[1].value;
  for (const Fact& fact : machine_facts()) {
    if (fact.name == "free memory") { EXPECT_GT(*fact.number, 1e6); }
    EXPECT_FALSE(fact.value.empty()) << fact.name;
  }
  EXPECT_NE(digest("a deck"), digest("another"));
}

}  // namespace
}  // namespace voltapile
