// A schedule as a user writes it, and as the terminal shows it.
#include <algorithm>
#include <sstream>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"
#include "voltapile/schedule/schedule.hpp"

#include "shapes.hpp"

namespace voltapile {
namespace {

const ScheduleShape kShape{cyclic_chunks(2, 1), 2};

std::string errors_of(std::string_view text, const ScheduleShape& shape = kShape) {
  try {
    parse_schedule(text, shape, "my.txt");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    return error.what();
  }
  return "";
}

TEST(ScheduleText, is_one_line_a_rank) {
  EXPECT_EQ(print_schedule(build("1f1b", kShape)),
            "F0.0 F0.1 B0.0 B0.1\n"
            "F1.0 B1.0 F1.1 B1.1\n");
  EXPECT_EQ(print_schedule(build("zero_bubble_h1", kShape)),
            "F0.0 F0.1 I0.0 W0.0 I0.1 W0.1\n"
            "F1.0 I1.0 F1.1 I1.1 W1.0 W1.1\n");
}

TEST(ScheduleText, may_have_comments_blank_lines_and_no_last_newline) {
  const auto programs = parse_schedule(
      "# mine\n\n  F0.0\tF0.1 B0.0 B0.1   # rank 0\n\r\n#\nF1.0 B1.0 F1.1 I1.1 W1.1\r\n# end",
      kShape, "");
  ASSERT_EQ(programs.size(), 2u);
  EXPECT_EQ(programs[0], build("1f1b", kShape)[0]);
  EXPECT_EQ(programs[1].back(), (Instruction{Op::backward_weight, Lane::compute, 1, 1}));
  EXPECT_NO_THROW(validate(lower(programs, kShape, {}), kShape));
}

TEST(ScheduleText, faults_carry_line_and_column_and_come_all_at_once) {
  EXPECT_EQ(errors_of("F0.0 F0.1 B0.0 X0.1\n"
                      "F1.0 B1.0 F1.7 B1,1\n"),
            "my.txt:1:1: rank 0 lacks B0.1\n"
            "my.txt:1:16: \"X0.1\": an instruction begins with F (forward), B (backward), I "
            "(backward of the input) or W (backward of the weights)\n"
            "my.txt:2:1: rank 1 lacks F1.1\n"
            "my.txt:2:1: rank 1 lacks B1.1\n"
            "my.txt:2:11: \"F1.7\": there is no micro-batch 7 (0 to 1)\n"
            "my.txt:2:16: \"B1,1\" is not of the form BCHUNK.MICRO, as in B0.1");
}

TEST(ScheduleText, every_kind_of_fault_is_named) {
  const std::string good = "F1.0 B1.0 F1.1 B1.1\n";
  EXPECT_EQ(errors_of("F0.0 F0.1 B0.0 B0.1 F0.1\n" + good),
            "my.txt:1:21: \"F0.1\" stands at 1:6 already");
  EXPECT_EQ(errors_of("F0.0 F0.1 B0.0 B0.1 F1.1\n" + good),
            "my.txt:1:21: \"F1.1\": chunk 1 lives on pipeline rank 1, and this is the line of rank "
            "0");
  EXPECT_EQ(errors_of("F0.0 F0.1 B0.0 B0.1 F2.1\n" + good),
            "my.txt:1:21: \"F2.1\": there is no chunk 2 (0 to 1)");
  EXPECT_EQ(errors_of("F0.0 B0.1 F0.1 B0.0 B0.1\n" + good),
            "my.txt:1:6: \"B0.1\" comes before F0.1");
  EXPECT_EQ(errors_of("F0.0 F0.1 W0.0 I0.0 B0.1\n" + good),
            "my.txt:1:11: \"W0.0\" comes before I0.0");
  EXPECT_EQ(errors_of("F0.0 F0.1 B0.0 W0.0 B0.1\n" + good),
            "my.txt:1:16: \"W0.0\" goes back twice: B stands for I and W together");
  EXPECT_EQ(errors_of("F0.0 F0.1 B0.0 B0.1\n"),
            "my.txt:1:1: 1 lines of instructions for 2 pipeline ranks: one line each");
  EXPECT_EQ(errors_of("F0.0 F0.1 B0.0 B0.1\n" + good + " F0.0\n"),
            "my.txt:3:2: a line too many: there are 2 pipeline ranks");
  for (std::string_view word : {"F", "F1", "F1.", "F.1", "F1.0.1", "F1.0x", "F1. 0"})
    EXPECT_NE(errors_of("F0.0 F0.1 B0.0 B0.1\n" + good.substr(0, 19) + " " + std::string(word))
                  .find("is not of the form FCHUNK.MICRO"),
              std::string::npos)
        << word;
  EXPECT_NE(errors_of("F0.99999999999999999999\n" + good), "");
  EXPECT_NE(errors_of(""), "");
}

TEST(ScheduleText, a_schedule_whose_ranks_wait_for_each_other_is_refused) {
  const std::string message = errors_of(
      "F0.0 B0.0 F0.1 B0.1\n"
      "F1.0 F1.1 B1.0 B1.1\n");
  EXPECT_EQ(message,
            "my.txt: the schedule cannot run: its ranks wait for each other\n"
            "  rank 0, instruction 1: backward(0, 0) waits for the backward of chunk 1, micro 0 on "
            "rank 1\n"
            "  rank 1, instruction 1: forward(1, 1) waits for forward(0, 1) on rank 0");
}

std::string picture(std::string_view name, const ScheduleShape& shape, int columns,
                    const LowerOptions& options = {}) {
  Costs costs;
  costs.recompute = options.recompute ? 1 : 0;
  return draw(simulate(lowered(name, shape, options), shape, costs), shape.chunks.ranks, columns);
}

TEST(Picture, shows_who_does_what_when) {
  EXPECT_EQ(picture("1f1b", {cyclic_chunks(2, 1), 2}, 40),
            "rank 0 │0░░1░░······0▓▓▓▓▓···1▓▓▓▓▓\n"
            "rank 1 │···0░░0▓▓▓▓▓1░░1▓▓▓▓▓······\n"
            "░ forward  ▓ backward  · idle\n"
            "0 micro-batch\n");
  EXPECT_EQ(picture("zero_bubble_h1", {cyclic_chunks(2, 1), 2}, 25),
            "rank 0 │0░1░··0▓0▚1▓1▚\n"
            "rank 1 │··0░0▓1░1▓0▚1▚\n"
            "░ forward\n"
            "▓ backward (input)\n"
            "▚ backward (weights)\n"
            "· idle  0 micro-batch\n");
}

TEST(Picture, names_chunks_where_a_rank_has_several_and_runs_where_micros_are_too_short) {
  const std::string fine = picture("breadth_first", {cyclic_chunks(2, 2), 2}, 90);
  EXPECT_NE(fine.find("rank 0 │0.0░░0.1░░2.0░░2.1░░"), std::string::npos) << fine;
  EXPECT_NE(fine.find("0.0 chunk.micro"), std::string::npos);
  const std::string coarse = picture("breadth_first", {cyclic_chunks(2, 2), 16}, 60);
  EXPECT_NE(coarse.find("rank 0 │0░░"), std::string::npos) << coarse;
  EXPECT_NE(coarse.find("0 chunk\n"), std::string::npos);
}

// Code points, each one cell wide.
size_t width_of(const std::string& line) {
  return static_cast<size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

TEST(Picture, is_never_wider_than_it_may_be) {
  for (const std::string& name : schedule_names())
    for (const ScheduleShape& shape : shape_grid(name))
      for (int columns : {24, 61, 80, 200}) {
        std::istringstream lines(picture(name, shape, columns, {true, false, true}));
        std::string line;
        int rows = 0;
        while (std::getline(lines, line)) {
          ASSERT_LE(width_of(line), static_cast<size_t>(columns)) << show(name, shape) << line;
          rows += line.starts_with("rank") ? 1 : 0;
        }
        ASSERT_EQ(rows, shape.chunks.ranks);
      }
}

TEST(Picture, of_nothing_is_empty) { EXPECT_EQ(draw({}, 2, 80), ""); }

}  // namespace
}  // namespace voltapile
