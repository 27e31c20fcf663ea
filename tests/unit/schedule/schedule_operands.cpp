// Operands are what the engine waits for: a missing one is a race. Written out, one by one.
#include <algorithm>

#include <gtest/gtest.h>

#include "voltapile/schedule/schedule.hpp"

namespace voltapile {
namespace {

// 2 ranks, 4 chunks: rank 0 holds 0 and 2, rank 1 holds 1 and 3.
const ChunkTable kTable = cyclic_chunks(2, 2);

// "r weights(2), w saved(2, 5)", sorted.
std::string text_of(Op op, int chunk, int micro, OperandRules rules = {}) {
  std::vector<std::string> parts;
  const Instruction i{op, Lane::compute, static_cast<int16_t>(chunk), static_cast<int16_t>(micro)};
  for (const Operand& o : operands(i, kTable, rules)) {
    std::string part = o.access == Access::read ? "r " : o.access == Access::write ? "w " : "u ";
    part += name_of(o.value);
    if (o.chunk >= 0) part += " c" + std::to_string(o.chunk);
    if (o.micro >= 0) part += " m" + std::to_string(o.micro);
    parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end());
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

TEST(Operands, of_the_first_chunk_are_pictures) {
  EXPECT_EQ(text_of(Op::load_batch, 0, 5), "w pictures m5");
  EXPECT_EQ(text_of(Op::forward, 0, 5),
            "r pictures m5, r step_state, r weights c0, u workspace, w activation c1 m5, "
            "w saved c0 m5");
  EXPECT_EQ(text_of(Op::backward, 0, 5),
            "r gradient c1 m5, r pictures m5, r saved c0 m5, r step_state, r weights c0, "
            "u gradients c0, u workspace");
}

TEST(Operands, of_a_middle_chunk_are_its_two_borders) {
  EXPECT_EQ(text_of(Op::load_batch, 2, 5), "");
  EXPECT_EQ(text_of(Op::forward, 2, 5),
            "r activation c2 m5, r step_state, r weights c2, u workspace, w activation c3 m5, "
            "w saved c2 m5");
  EXPECT_EQ(text_of(Op::recompute, 2, 5),
            "r activation c2 m5, r saved c2 m5, r step_state, r weights c2, u workspace");
  EXPECT_EQ(text_of(Op::backward, 2, 5),
            "r activation c2 m5, r gradient c3 m5, r saved c2 m5, r step_state, r weights c2, "
            "u gradients c2, u workspace, w gradient c2 m5");
  EXPECT_EQ(text_of(Op::backward_input, 2, 5),
            "r activation c2 m5, r gradient c3 m5, r saved c2 m5, r step_state, r weights c2, "
            "u gradients c2, u workspace, w deferred c2 m5, w gradient c2 m5");
  EXPECT_EQ(text_of(Op::backward_weight, 2, 5),
            "r activation c2 m5, r deferred c2 m5, r saved c2 m5, r step_state, u gradients c2, "
            "u workspace");
}

TEST(Operands, of_the_last_chunk_are_labels_and_the_loss) {
  EXPECT_EQ(text_of(Op::load_batch, 3, 5), "w labels m5");
  EXPECT_EQ(text_of(Op::forward, 3, 5),
            "r activation c3 m5, r labels m5, r step_state, r weights c3, u loss, u workspace, "
            "w saved c3 m5");
  EXPECT_EQ(text_of(Op::recompute, 3, 5),
            "r activation c3 m5, r labels m5, r saved c3 m5, r step_state, r weights c3, "
            "u workspace");
  EXPECT_EQ(text_of(Op::backward, 3, 5),
            "r activation c3 m5, r labels m5, r saved c3 m5, r step_state, r weights c3, "
            "u gradients c3, u workspace, w gradient c3 m5");
}

TEST(Operands, of_a_single_chunk_are_pictures_and_labels) {
  const Instruction load{Op::load_batch, Lane::input, 0, 1};
  const auto list = operands(load, cyclic_chunks(1, 1));
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].value, Value::pictures);
  EXPECT_EQ(list[1].value, Value::labels);
}

TEST(Operands, of_transfers_are_what_enters_the_chunk_on_both_ranks) {
  EXPECT_EQ(text_of(Op::send_activation, 3, 5), "r activation c3 m5");
  EXPECT_EQ(text_of(Op::receive_activation, 3, 5), "w activation c3 m5");
  EXPECT_EQ(text_of(Op::send_gradient, 3, 5), "r gradient c3 m5");
  EXPECT_EQ(text_of(Op::receive_gradient, 3, 5), "w gradient c3 m5");
}

TEST(Operands, of_a_steps_end_follow_the_gradients_to_the_weights) {
  EXPECT_EQ(text_of(Op::reduce_gradients, 2, -1), "u gradients c2, u norm_sums, w reduced c2");
  EXPECT_EQ(text_of(Op::norm, -1, -1), "u loss, u norm_sums, u step_state");
  EXPECT_EQ(text_of(Op::update, 2, -1), "r reduced c2, r step_state, u state c2, u weights c2");
  EXPECT_EQ(text_of(Op::gather_weights, 2, -1), "u weights c2");
  EXPECT_EQ(text_of(Op::snapshot, 2, -1), "r state c2");
}

TEST(Operands, of_an_optimizer_on_the_host_pass_through_its_memory) {
  const OperandRules rules{.homes = {.optimizer = Home::host}};
  EXPECT_EQ(text_of(Op::offload_gradients, 2, -1, rules), "r reduced c2, w host_gradients c2");
  EXPECT_EQ(text_of(Op::update, 2, -1, rules),
            "r host_gradients c2, r step_state, u state c2, w host_weights c2");
  EXPECT_EQ(text_of(Op::fetch_weights, 2, -1, rules), "r host_weights c2, u weights c2");
  const OperandRules away{.homes = {.optimizer = Home::nvme, .weights = Home::nvme}};
  EXPECT_EQ(text_of(Op::load_state, 2, -1, away), "w state c2");
  EXPECT_EQ(text_of(Op::save_state, 2, -1, away), "r state c2");
  EXPECT_EQ(text_of(Op::load_weights, 2, -1, away), "w host_weights c2");
  EXPECT_EQ(text_of(Op::save_weights, 2, -1, away), "r host_weights c2");
  EXPECT_EQ(text_of(Op::fetch_weights, 2, -1, away), "r host_weights c2, w weights c2");
}

TEST(Operands, of_early_updates_keep_forward_free_of_the_norm) {
  const OperandRules rules{.homes = {.optimizer = Home::host}, .early_updates = true};
  EXPECT_EQ(text_of(Op::norm, -1, -1, rules), "u loss, u multiplier, u norm_sums");
  EXPECT_EQ(text_of(Op::update, 2, -1, rules),
            "r host_gradients c2, r multiplier, u state c2, w host_weights c2");
}

TEST(Operands, of_stored_activations_are_all_that_backward_reads) {
  EXPECT_EQ(text_of(Op::store_activation, 2, 5),
            "r activation c2 m5, r saved c2 m5, w stored c2 m5");
  EXPECT_EQ(text_of(Op::fetch_activation, 2, 5),
            "r stored c2 m5, w activation c2 m5, w saved c2 m5");
  EXPECT_EQ(text_of(Op::store_activation, 0, 5), "r saved c0 m5, w stored c0 m5");
}

TEST(Operands, that_live_elsewhere_between_uses_do_not_outlive_a_step_on_the_device) {
  EXPECT_TRUE(is_persistent(Value::weights));
  EXPECT_FALSE(is_persistent(Value::host_weights));
  EXPECT_TRUE(is_persistent(Value::state));
  const Homes host{.optimizer = Home::host, .weights = Home::host};
  EXPECT_FALSE(is_persistent(Value::weights, host));
  EXPECT_TRUE(is_persistent(Value::host_weights, host));
  EXPECT_TRUE(is_persistent(Value::state, host));
  const Homes nvme{.optimizer = Home::nvme, .weights = Home::nvme};
  EXPECT_FALSE(is_persistent(Value::host_weights, nvme));
  EXPECT_FALSE(is_persistent(Value::state, nvme));
}

TEST(Operands, of_evaluation_keep_nothing) {
  EXPECT_EQ(text_of(Op::forward, 2, 5, {true, false}),
            "r activation c2 m5, r step_state, r weights c2, u workspace, w activation c3 m5");
}

TEST(Operands, leave_the_input_out_where_backward_does_not_read_it_but_never_the_pictures) {
  EXPECT_EQ(text_of(Op::backward_weight, 2, 5, {false, true}),
            "r deferred c2 m5, r saved c2 m5, r step_state, u gradients c2, u workspace");
  EXPECT_EQ(text_of(Op::backward_weight, 0, 5, {false, true}),
            "r deferred c0 m5, r pictures m5, r saved c0 m5, r step_state, u gradients c0, "
            "u workspace");
}

// The engine keeps one last writer and a list of readers a value: twice in one list would be a wait
// on itself.
TEST(Operands, name_each_value_once) {
  for (int op = 0; op < kOpCount; ++op)
    for (const ChunkTable& table : {cyclic_chunks(1, 1), cyclic_chunks(2, 2)})
      for (int chunk = 0; chunk < table.chunks(); ++chunk) {
        const Instruction i{static_cast<Op>(op), Lane::compute, static_cast<int16_t>(chunk), 0};
        const auto list = operands(i, table);
        for (size_t a = 0; a < list.size(); ++a)
          for (size_t b = 0; b < a; ++b)
            EXPECT_FALSE(list[a].value == list[b].value && list[a].chunk == list[b].chunk &&
                         list[a].micro == list[b].micro)
                << name_of(i.op) << " " << name_of(list[a].value);
      }
}

TEST(Names, are_all_there_and_differ) {
  std::vector<std::string_view> names;
  for (int op = 0; op < kOpCount; ++op) names.push_back(name_of(static_cast<Op>(op)));
  for (int lane = 0; lane < kLaneCount; ++lane) names.push_back(name_of(static_cast<Lane>(lane)));
  for (int v = 0; v < kValueCount; ++v) names.push_back(name_of(static_cast<Value>(v)));
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_EQ(std::find(names.begin(), names.end(), "?"), names.end());
}

}  // namespace
}  // namespace voltapile
