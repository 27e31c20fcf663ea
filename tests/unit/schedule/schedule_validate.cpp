// Faults planted in good programs, and what validate() says of them.
#include <algorithm>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"
#include "voltapile/schedule/schedule.hpp"

#include "shapes.hpp"

namespace voltapile {
namespace {

// What validate() says; empty when it has nothing to say.
std::string fault_of(const std::vector<Program>& programs, const ScheduleShape& shape) {
  try {
    validate(programs, shape);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::failure);
    return error.what();
  }
  return "";
}

const ScheduleShape kShape{cyclic_chunks(2, 2), 4};

class Validate : public testing::Test {
 protected:
  std::vector<Program> programs_ = lowered("interleaved", kShape, {true, true, true});

  Program::iterator find(int rank, Op op, int chunk, int micro) {
    Program& program = programs_[static_cast<size_t>(rank)];
    const auto found = std::find_if(program.begin(), program.end(), [&](const Instruction& i) {
      return i.op == op && i.chunk == chunk && i.micro == micro;
    });
    EXPECT_NE(found, program.end()) << name_of(op);
    return found;
  }
  // Takes an instruction out and puts it before another one of the rank.
  void move_before(int rank, Op op, int chunk, int micro, Op other, int other_chunk,
                   int other_micro) {
    Program& program = programs_[static_cast<size_t>(rank)];
    const auto from = find(rank, op, chunk, micro);
    const Instruction moved = *from;
    program.erase(from);
    program.insert(find(rank, other, other_chunk, other_micro), moved);
  }
  void expect_fault(std::initializer_list<std::string_view> parts) {
    const std::string fault = fault_of(programs_, kShape);
    for (std::string_view part : parts)
      EXPECT_NE(fault.find(part), std::string::npos)
          << "\"" << fault << "\" does not say \"" << part << "\"";
  }
};

TEST_F(Validate, accepts_what_was_not_touched) { EXPECT_NO_THROW(validate(programs_, kShape)); }

TEST_F(Validate, sees_a_missing_backward) {
  find(0, Op::recompute, 2, 1)[0] = {Op::load_batch, Lane::input, 0, 1};
  programs_[0].erase(find(0, Op::load_batch, 0, 1));
  programs_[0].erase(find(0, Op::backward, 2, 1));
  expect_fault({"rank 0", "backward(2, 1) was not issued"});
}

TEST_F(Validate, sees_a_missing_transfer) {
  programs_[1].erase(find(1, Op::receive_activation, 3, 2));
  expect_fault({"rank 1", "receive_activation(3, 2) was not issued"});
}

TEST_F(Validate, sees_a_missing_norm_update_or_load) {
  const auto good = programs_;
  programs_[1].erase(find(1, Op::norm, -1, -1));
  expect_fault({"rank 1", "norm was not issued"});
  programs_ = good;
  programs_[0].erase(find(0, Op::update, 2, -1));
  expect_fault({"rank 0", "update(2) was not issued"});
  programs_ = good;
  programs_[1].erase(find(1, Op::load_batch, 3, 3));
  expect_fault({"rank 1", "load_batch(3, 3) was not issued"});
}

TEST_F(Validate, sees_an_instruction_issued_twice_or_on_the_wrong_rank) {
  const auto good = programs_;
  programs_[0].insert(find(0, Op::norm, -1, -1), *find(0, Op::forward, 0, 2));
  expect_fault({"rank 0", "forward(0, 2)", "already"});
  programs_ = good;
  find(0, Op::forward, 0, 2)->chunk = 1;
  expect_fault({"rank 0", "forward(1, 2)", "does not belong"});
}

TEST_F(Validate, sees_a_backward_that_is_whole_and_split) {
  Program& program = programs_[0];
  program.insert(find(0, Op::backward, 2, 1), {Op::backward_input, Lane::compute, 2, 1});
  expect_fault({"rank 0", "chunk 2, micro 1", "whole and split"});
}

TEST_F(Validate, sees_swapped_receives) {
  std::swap(*find(1, Op::receive_activation, 1, 2), *find(1, Op::receive_activation, 1, 3));
  expect_fault({"from rank 0 to rank 1", "send_activation(1, 2)", "receive_activation(1, 3)",
                "rank 1, position"});
}

TEST_F(Validate, sees_a_read_before_the_write) {
  move_before(1, Op::send_activation, 2, 0, Op::forward, 1, 0);
  expect_fault({"rank 1", "send_activation(2, 0)", "reads activation (chunk 2, micro 0)"});
}

TEST_F(Validate, sees_gradients_that_leave_too_early) {
  move_before(0, Op::reduce_gradients, 2, -1, Op::backward, 2, 3);
  expect_fault({"rank 0", "backward(2, 3)", "after reduce_gradients"});
}

TEST_F(Validate, sees_a_step_end_out_of_order) {
  const auto good = programs_;
  move_before(0, Op::update, 0, -1, Op::norm, -1, -1);
  expect_fault({"rank 0", "update(0)", "before norm"});
  programs_ = good;
  move_before(0, Op::gather_weights, 2, -1, Op::update, 2, -1);
  expect_fault({"rank 0", "gather_weights(2)", "before update"});
}

TEST_F(Validate, sees_work_between_a_recomputation_and_its_backward) {
  move_before(0, Op::recompute, 2, 1, Op::recompute, 2, 0);
  expect_fault({"rank 0", "recompute(2, 0)", "between recompute(2, 1) and its backward"});
}

TEST_F(Validate, sees_an_instruction_on_a_lane_that_cannot_run_it) {
  find(0, Op::receive_gradient, 1, 0)->lane = Lane::pipe_out;
  expect_fault({"rank 0", "receive_gradient(1, 0)", "cannot run on pipe_out"});
}

// Nobody reads what the last forward of an evaluation makes.
TEST(ValidateEvaluation, sees_a_missing_forward) {
  const ScheduleShape shape{cyclic_chunks(2, 1), 2};
  auto programs = lower(build_forward_only(shape), shape, {false, false, false});
  ASSERT_EQ(fault_of(programs, shape), "");
  std::erase(programs[1], Instruction{Op::forward, Lane::compute, 1, 1});
  EXPECT_NE(fault_of(programs, shape).find("forward(1, 1) was not issued"), std::string::npos);
}

// Every operand is written before it is read and every edge has one order, yet with sends that
// block, rank 0 waits for a gradient that rank 1 cannot make before it has got its activation.
TEST(ValidateOrder, sees_a_circular_wait) {
  const ScheduleShape shape{cyclic_chunks(2, 1), 2};
  auto programs = lowered("1f1b", shape);
  Program& program = programs[0];
  const Instruction receive{Op::receive_gradient, Lane::pipe_in, 1, 0};
  std::erase(program, receive);
  program.insert(std::find(program.begin(), program.end(),
                           Instruction{Op::send_activation, Lane::pipe_out, 1, 0}),
                 receive);
  const std::string message = fault_of(programs, shape);
  EXPECT_NE(message.find("circular wait"), std::string::npos) << message;
  EXPECT_NE(message.find("receive_gradient(1, 0) waits for rank 1"), std::string::npos) << message;
  EXPECT_NE(message.find("receive_activation(1, 0) waits for rank 0"), std::string::npos)
      << message;
}

// Both ranks send first: fine with buffers between, a deadlock without.
TEST(ValidateOrder, sees_two_ranks_that_send_to_each_other_first) {
  const ScheduleShape shape{{2, {0, 1, 0}}, 2};
  const auto load = [](int16_t chunk, int16_t micro) {
    return Instruction{Op::load_batch, Lane::input, chunk, micro};
  };
  const auto forward = [](int16_t chunk, int16_t micro) {
    return Instruction{Op::forward, Lane::compute, chunk, micro};
  };
  const auto send = [](int16_t chunk, int16_t micro) {
    return Instruction{Op::send_activation, Lane::pipe_out, chunk, micro};
  };
  const auto receive = [](int16_t chunk, int16_t micro) {
    return Instruction{Op::receive_activation, Lane::pipe_in, chunk, micro};
  };
  const Program first{load(0, 0),    forward(0, 0), send(1, 0),    load(0, 1),
                      load(2, 0),    load(2, 1),    forward(0, 1), send(1, 1),
                      receive(2, 0), forward(2, 0), receive(2, 1), forward(2, 1)};
  Program second{receive(1, 0), forward(1, 0), receive(1, 1),
                 send(2, 0),    forward(1, 1), send(2, 1)};
  ASSERT_EQ(fault_of({first, second}, shape), "");
  std::swap(second[2], second[3]);
  EXPECT_EQ(fault_of({first, second}, shape),
            "a circular wait:\n"
            "  rank 0, position 7, send_activation(1, 1) waits for rank 1\n"
            "  rank 1, position 2, send_activation(2, 0) waits for rank 0");
}

}  // namespace
}  // namespace voltapile
