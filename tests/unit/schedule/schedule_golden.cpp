// One small shape of each schedule, written out in full. After a wanted change:
// VOLTAPILE_WRITE_GOLDEN=1 build/tests/unit/schedule/schedule_golden, then read the difference.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "voltapile/base/format.hpp"
#include "voltapile/schedule/schedule.hpp"

#include "shapes.hpp"

namespace voltapile {
namespace {

std::string line_of(const Instruction& i) {
  std::string text = format("{:<8}  {}", name_of(i.lane), name_of(i.op));
  if (i.chunk >= 0) text += format(" chunk {}", i.chunk);
  if (i.micro >= 0) text += format(" micro {}", i.micro);
  return text;
}

std::string text_of(const std::vector<Program>& compute, const std::vector<Program>& programs,
                    const ScheduleShape& shape) {
  std::string text = print_schedule(compute) + "\n";
  text += draw(simulate(programs, shape, {}), shape.chunks.ranks, 100);
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    text += format("\nrank {}\n", rank);
    for (const Instruction& i : programs[rank]) text += "  " + line_of(i) + "\n";
  }
  return text;
}

void compare(const std::string& name, const std::string& text) {
  const auto path = std::filesystem::path(VP_GOLDEN_FOLDER) / (name + ".txt");
  if (const char* write = std::getenv("VOLTAPILE_WRITE_GOLDEN"); write && *write == '1') {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing: VOLTAPILE_WRITE_GOLDEN=1 writes it";
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(golden.str(), text) << "differs from " << path;
}

class Golden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Golden, testing::ValuesIn(schedule_names()),
                         [](const auto& param) { return "of_" + param.param; });

TEST_P(Golden, programs_are_what_they_were) {
  const bool one = takes_one_chunk(GetParam());
  ScheduleShape shape{cyclic_chunks(one ? 3 : 2, one ? 1 : 2), 4};
  // Two of them with all that a step can have.
  const bool rich = GetParam() == "breadth_first" || GetParam() == "zero_bubble_h1";
  if (rich) shape.homes.optimizer = Home::host;
  const LowerOptions options{rich, rich, true};
  const std::vector<Program> compute = build(GetParam(), shape);
  compare(GetParam(), text_of(compute, lower(compute, shape, options), shape));
}

TEST(GoldenEvaluation, program_is_what_it_was) {
  const ScheduleShape shape{cyclic_chunks(2, 2), 3};
  const std::vector<Program> compute = build_forward_only(shape);
  compare("evaluation", text_of(compute, lower(compute, shape, {false, false, false}), shape));
}

}  // namespace
}  // namespace voltapile
