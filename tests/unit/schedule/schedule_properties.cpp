// What every schedule must hold on every shape, checked by code that shares nothing with
// validate(): a step is complete, blocking transfers end, both ends of an edge agree.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"
#include "voltapile/schedule/schedule.hpp"

#include "shapes.hpp"

namespace voltapile {
namespace {

const LowerOptions kOptions[] = {
    {},
    {true, false, true},
    {false, true, true},
    {true, true, true},
};

int rank_of(const ScheduleShape& shape, int chunk) {
  return shape.chunks.rank_of[static_cast<size_t>(chunk)];
}

// The ranks between which a transfer goes; {-1, -1} for anything else.
std::pair<int, int> edge_of(const Instruction& i, const ScheduleShape& shape) {
  switch (i.op) {
    case Op::send_activation:
    case Op::receive_activation: return {rank_of(shape, i.chunk - 1), rank_of(shape, i.chunk)};
    case Op::send_gradient:
    case Op::receive_gradient: return {rank_of(shape, i.chunk), rank_of(shape, i.chunk - 1)};
    default: return {-1, -1};
  }
}
bool is_send(Op op) { return op == Op::send_activation || op == Op::send_gradient; }

using Item = std::tuple<bool, int, int>;  // activation or gradient, chunk, micro
Item item_of(const Instruction& i) {
  return {i.op == Op::send_activation || i.op == Op::receive_activation, i.chunk, i.micro};
}

void expect_complete(const std::vector<Program>& programs, const ScheduleShape& shape,
                     const LowerOptions& options) {
  std::map<std::tuple<Op, int, int, int>, int> count;  // op, rank, chunk, micro
  size_t total = 0, expected = 0;
  for (size_t rank = 0; rank < programs.size(); ++rank)
    for (const Instruction& i : programs[rank])
      ++count[{i.op, static_cast<int>(rank), i.chunk, i.micro}], ++total;
  const auto once = [&](Op op, int rank, int chunk, int micro) {
    EXPECT_EQ((count[{op, rank, chunk, micro}]), 1)
        << name_of(op) << " rank " << rank << " chunk " << chunk << " micro " << micro;
    ++expected;
  };
  const int last = shape.chunks.last();
  for (int chunk = 0; chunk <= last; ++chunk) {
    const int rank = rank_of(shape, chunk);
    for (int micro = 0; micro < shape.micros; ++micro) {
      once(Op::forward, rank, chunk, micro);
      if (chunk == 0 || chunk == last) once(Op::load_batch, rank, chunk, micro);
      const bool moves = chunk > 0 && rank_of(shape, chunk - 1) != rank;
      if (moves) once(Op::send_activation, rank_of(shape, chunk - 1), chunk, micro);
      if (moves) once(Op::receive_activation, rank, chunk, micro);
      if (!options.training) continue;
      if (moves) once(Op::send_gradient, rank, chunk, micro);
      if (moves) once(Op::receive_gradient, rank_of(shape, chunk - 1), chunk, micro);
      if (options.recompute) once(Op::recompute, rank, chunk, micro);
      if (count.contains({Op::backward, rank, chunk, micro})) {
        once(Op::backward, rank, chunk, micro);
      } else {
        once(Op::backward_input, rank, chunk, micro);
        once(Op::backward_weight, rank, chunk, micro);
      }
    }
    if (!options.training) continue;
    once(Op::reduce_gradients, rank, chunk, -1);
    once(Op::update, rank, chunk, -1);
    if (options.gather_shards) once(Op::gather_weights, rank, chunk, -1);
  }
  for (int rank = 0; options.training && rank < shape.chunks.ranks; ++rank)
    once(Op::norm, rank, -1, -1);
  EXPECT_EQ(total, expected) << "something was issued that belongs to no step";
}

void expect_equal_order_on_edges(const std::vector<Program>& programs, const ScheduleShape& shape) {
  std::map<std::pair<int, int>, std::vector<Item>> sends, receives;
  for (const Program& program : programs)
    for (const Instruction& i : program)
      if (const auto edge = edge_of(i, shape); edge.first >= 0)
        (is_send(i.op) ? sends : receives)[edge].push_back(item_of(i));
  EXPECT_EQ(sends, receives);
}

// Each rank runs its program one instruction at a time, and a transfer needs both ends at it.
void expect_ends_when_everything_blocks(const std::vector<Program>& programs,
                                        const ScheduleShape& shape) {
  std::vector<size_t> next(programs.size());
  std::set<Item> made;
  bool moved = true;
  const auto at = [&](int rank) -> const Instruction* {
    const auto r = static_cast<size_t>(rank);
    return next[r] < programs[r].size() ? &programs[r][next[r]] : nullptr;
  };
  while (moved) {
    moved = false;
    for (int rank = 0; rank < shape.chunks.ranks; ++rank)
      while (const Instruction* i = at(rank)) {
        if (i->op == Op::norm) {
          bool all = true;
          for (int other = 0; other < shape.chunks.ranks; ++other)
            all &= at(other) && at(other)->op == Op::norm;
          if (!all) break;
          for (size_t& n : next) ++n;
        } else if (const auto [from, to] = edge_of(*i, shape); from >= 0) {
          const int peer = rank == from ? to : from;
          const Instruction* other = at(peer);
          if (!other || edge_of(*other, shape) != std::pair(from, to) ||
              item_of(*other) != item_of(*i) || is_send(other->op) == is_send(i->op))
            break;
          EXPECT_TRUE(made.contains(item_of(*i))) << "sent before it was made";
          ++next[static_cast<size_t>(rank)];
          ++next[static_cast<size_t>(peer)];
        } else {
          if (i->op == Op::forward) made.insert({true, i->chunk + 1, i->micro});
          if (i->op == Op::backward || i->op == Op::backward_input)
            made.insert({false, i->chunk, i->micro});
          ++next[static_cast<size_t>(rank)];
        }
        moved = true;
      }
  }
  for (int rank = 0; rank < shape.chunks.ranks; ++rank) EXPECT_EQ(at(rank), nullptr) << rank;
}

class Schedules : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Schedules, testing::ValuesIn(schedule_names()),
                         [](const auto& param) { return "of_" + param.param; });

TEST_P(Schedules, lower_to_complete_ordered_programs_that_cannot_deadlock) {
  for (const ScheduleShape& shape : shape_grid(GetParam())) {
    SCOPED_TRACE(show(GetParam(), shape));
    for (const LowerOptions& options : kOptions) {
      const std::vector<Program> programs = lowered(GetParam(), shape, options);
      expect_complete(programs, shape, options);
      expect_equal_order_on_edges(programs, shape);
      expect_ends_when_everything_blocks(programs, shape);
      EXPECT_NO_THROW(validate(programs, shape));
      EXPECT_NO_THROW(simulate(programs, shape, {}, 2));
    }
    if (HasFailure()) break;
  }
}

TEST_P(Schedules, survive_being_printed_and_parsed) {
  for (const ScheduleShape& shape : shape_grid(GetParam())) {
    const std::vector<Program> programs = build(GetParam(), shape);
    ASSERT_EQ(parse_schedule(print_schedule(programs), shape, "test"), programs)
        << show(GetParam(), shape);
  }
}

TEST(Evaluation, runs_every_forward_once_on_any_shape) {
  const LowerOptions options{false, false, false};
  for (const ScheduleShape& shape : shape_grid("breadth_first")) {
    SCOPED_TRACE(show("forward only", shape));
    const std::vector<Program> programs = lower(build_forward_only(shape), shape, options);
    expect_complete(programs, shape, options);
    expect_equal_order_on_edges(programs, shape);
    expect_ends_when_everything_blocks(programs, shape);
    ASSERT_NO_THROW(validate(programs, shape));
  }
}

TEST(OddShapes, a_short_last_round_of_chunks_works) {
  for (int chunks = 4; chunks <= 8; ++chunks) {
    ScheduleShape shape{{3, {}}, 5};
    for (int chunk = 0; chunk < chunks; ++chunk) shape.chunks.rank_of.push_back(chunk % 3);
    for (std::string_view name : {"interleaved", "breadth_first"}) {
      SCOPED_TRACE(show(name, shape));
      const std::vector<Program> programs = lowered(name, shape);
      expect_complete(programs, shape, {});
      EXPECT_NO_THROW(validate(programs, shape));
    }
  }
}

TEST(OddShapes, breadth_first_takes_any_placement) {
  const ScheduleShape v_shape{{3, {0, 1, 2, 2, 1, 0}}, 4}, blocks{{2, {0, 0, 0, 1, 1}}, 3};
  for (const ScheduleShape& shape : {v_shape, blocks}) {
    const std::vector<Program> programs = lowered("breadth_first", shape);
    expect_complete(programs, shape, {});
    expect_ends_when_everything_blocks(programs, shape);
    EXPECT_NO_THROW(validate(programs, shape));
  }
}

TEST(OddShapes, one_chunk_schedules_take_ranks_in_any_order) {
  const ScheduleShape shape{{3, {2, 0, 1}}, 5};
  for (std::string_view name : {"gpipe", "1f1b", "zero_bubble_h1"})
    EXPECT_NO_THROW(validate(lowered(name, shape), shape)) << name;
}

std::string refusal(std::string_view name, const ScheduleShape& shape) {
  try {
    build(name, shape);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    return error.what();
  }
  return "";
}

TEST(OddShapes, what_a_schedule_is_not_defined_for_is_refused_with_the_fix) {
  EXPECT_NE(refusal("1f1b", {cyclic_chunks(2, 3), 4}).find("parallel.chunks = 1"),
            std::string::npos);
  EXPECT_NE(refusal("interleaved", {{2, {0, 1, 1, 0}}, 4}).find("cyclically"), std::string::npos);
  EXPECT_NE(refusal("gpipe", {{3, {0, 1}}, 4}).find("every rank needs one"), std::string::npos);
  EXPECT_NE(refusal("breadth_first", {{3, {0, 1, 1}}, 4}).find("rank 2 holds no chunk"),
            std::string::npos);
  EXPECT_NE(refusal("gpipe", {cyclic_chunks(2, 1), 0}).find("micro-batches"), std::string::npos);
  EXPECT_NE(refusal("gpipe", {cyclic_chunks(2, 1), 40000}).find("32767"), std::string::npos);
  EXPECT_NE(refusal("gpip", {cyclic_chunks(2, 1), 2}).find("breadth_first"), std::string::npos);
}

TEST(StepEnd, updates_come_in_the_order_in_which_the_next_forward_wants_them) {
  const ScheduleShape shape{cyclic_chunks(2, 3), 4, {.optimizer = Home::host}};
  for (const Program& program : lowered("breadth_first", shape, {.gather_shards = true})) {
    std::vector<int> forward, update, gather, reduce;
    for (const Instruction& i : program) {
      if (i.op == Op::forward && i.micro == 0) forward.push_back(i.chunk);
      if (i.op == Op::update && i.lane == Lane::host) update.push_back(i.chunk);
      if (i.op == Op::gather_weights) gather.push_back(i.chunk);
      if (i.op == Op::reduce_gradients) reduce.push_back(i.chunk);
    }
    EXPECT_EQ(update, forward);
    EXPECT_EQ(gather, forward);
    std::reverse(reduce.begin(), reduce.end());
    EXPECT_EQ(reduce, forward) << "a chunk's gradients leave as soon as they are complete";
  }
}

// Most values of a kind that are alive at once on each rank, in program order.
std::vector<int> peaks(const std::vector<Program>& programs, const ScheduleShape& shape,
                       Value value) {
  std::vector<int> result;
  for (int rank = 0; rank < shape.chunks.ranks; ++rank) {
    std::map<std::pair<int, int>, std::pair<int, int>> lives;
    const Program& program = programs[static_cast<size_t>(rank)];
    for (int at = 0; at < static_cast<int>(program.size()); ++at)
      for (const Operand& o : operands(program[static_cast<size_t>(at)], shape.chunks))
        if (o.value == value)
          lives.try_emplace({o.chunk, o.micro}, at, at).first->second.second = at;
    std::vector<int> change(program.size() + 1);
    for (const auto& [key, life] : lives)
      ++change[static_cast<size_t>(life.first)], --change[static_cast<size_t>(life.second) + 1];
    int alive = 0, most = 0;
    for (int c : change) most = std::max(most, alive += c);
    result.push_back(most);
  }
  return result;
}

TEST(Memory, zero_bubble_h1_keeps_no_more_than_the_first_rank_of_1f1b) {
  for (const ScheduleShape& shape : shape_grid("zero_bubble_h1")) {
    const auto most = [&](std::string_view name) {
      const auto all = peaks(lowered(name, shape), shape, Value::saved);
      return *std::max_element(all.begin(), all.end());
    };
    EXPECT_EQ(most("zero_bubble_h1"), most("1f1b")) << show("", shape);
    EXPECT_EQ(most("1f1b"), std::min(shape.chunks.ranks, shape.micros));
  }
}

TEST(Memory, breadth_first_has_the_gradients_of_one_chunk_at_a_time) {
  const ScheduleShape shape{cyclic_chunks(4, 5), 8};
  for (int most : peaks(lowered("breadth_first", shape), shape, Value::gradients))
    EXPECT_EQ(most, 1);
  for (int most : peaks(lowered("interleaved", shape), shape, Value::gradients)) EXPECT_EQ(most, 5);
}

TEST(Memory, evaluation_holds_a_few_boundary_activations_whatever_the_number_of_micros) {
  const ScheduleShape shape{cyclic_chunks(4, 3), 40};
  const auto programs = lower(build_forward_only(shape), shape, {false, false, false});
  for (int most : peaks(programs, shape, Value::activation)) EXPECT_LE(most, 4);
  for (int most : peaks(programs, shape, Value::pictures)) EXPECT_LE(most, 2);
}

}  // namespace
}  // namespace voltapile
