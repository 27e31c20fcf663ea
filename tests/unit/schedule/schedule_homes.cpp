// Programs whose weights, state or activations live elsewhere between uses: still sound, and what
// they add comes where it should.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "voltapile/schedule/schedule.hpp"

#include "shapes.hpp"

namespace voltapile {
namespace {

std::vector<Homes> all_homes() {
  std::vector<Homes> homes;
  for (Home optimizer : {Home::device, Home::host, Home::nvme})
    for (Home weights : {Home::device, Home::host, Home::nvme})
      for (ActivationStore activations :
           {ActivationStore::working, ActivationStore::int8, ActivationStore::host})
        if (optimizer != Home::device || weights == Home::device)
          homes.push_back({optimizer, weights, activations});
  return homes;
}

std::string show(const Homes& homes) {
  return std::to_string(static_cast<int>(homes.optimizer)) +
         std::to_string(static_cast<int>(homes.weights)) +
         std::to_string(static_cast<int>(homes.activations));
}

TEST(Homes, give_sound_programs_on_every_schedule) {
  for (const std::string& schedule : schedule_names()) {
    std::vector<ScheduleShape> shapes = shape_grid(schedule);
    for (size_t at = 0; at < shapes.size(); at += 7) {
      ScheduleShape shape = shapes[at];
      for (const Homes& homes : all_homes())
        for (bool recompute : {false, true})
          for (bool gather : {false, true})
            for (bool early : {false, true}) {
              shape.homes = homes;
              shape.early_updates = early;
              const auto programs =
                  lowered(schedule, shape, {.recompute = recompute, .gather_shards = gather});
              ASSERT_NO_THROW(validate(programs, shape))
                  << show(schedule, shape) << " homes " << show(homes) << " early " << early;
              ASSERT_NO_THROW(simulate(programs, shape, {}, 2)) << show(schedule, shape);
            }
      const auto evaluation =
          lower(build_forward_only(shape), shape, {.gather_shards = true, .training = false});
      ASSERT_NO_THROW(validate(evaluation, shape)) << show(schedule, shape);
    }
  }
}

std::vector<Instruction> of_op(const Program& program, Op op) {
  std::vector<Instruction> found;
  std::copy_if(program.begin(), program.end(), std::back_inserter(found),
               [op](const Instruction& i) { return i.op == op; });
  return found;
}

// Breadth-first runs all micro-batches of a chunk before the next one: each chunk's weights come
// twice a step, the one that both directions meet in once.
TEST(Homes, weights_come_once_a_visit_and_one_visit_ahead) {
  ScheduleShape shape{cyclic_chunks(2, 3), 4, {Home::host, Home::host}};
  const auto programs = lowered("breadth_first", shape);
  for (const Program& program : programs) {
    EXPECT_EQ(of_op(program, Op::fetch_weights).size(), 5u);
    std::set<int> here;  // chunks whose weights were fetched and are not yet in use
    int at_work = -1;
    for (const Instruction& i : program) {
      if (i.op == Op::fetch_weights) here.insert(i.chunk);
      if (i.lane != Lane::compute || i.chunk == at_work) continue;
      EXPECT_TRUE(here.erase(i.chunk)) << "chunk " << i.chunk << " begins without its weights";
      at_work = i.chunk;
      EXPECT_LE(here.size(), 1u);
    }
  }
}

TEST(Homes, a_backward_that_follows_its_forward_at_once_stores_nothing) {
  ScheduleShape shape{cyclic_chunks(2, 1), 4, {.activations = ActivationStore::host}};
  const auto programs = lowered("1f1b", shape);
  EXPECT_EQ(of_op(programs[1], Op::store_activation).size(), 0u);
  EXPECT_EQ(of_op(programs[0], Op::store_activation).size(), 4u);
  EXPECT_EQ(of_op(programs[0], Op::fetch_activation).size(), 4u);
}

TEST(Homes, what_host_memory_holds_is_fetched_one_backward_ahead) {
  ScheduleShape shape{cyclic_chunks(1, 1), 6, {.activations = ActivationStore::host}};
  const Program program = lowered("gpipe", shape)[0];
  std::vector<int> fetched;
  for (const Instruction& i : program) {
    if (i.op == Op::fetch_activation) fetched.push_back(i.micro);
    if (i.op != Op::backward) continue;
    const auto at = std::find(fetched.begin(), fetched.end(), i.micro);
    ASSERT_NE(at, fetched.end()) << i.micro;
    EXPECT_EQ(std::distance(at, fetched.end()), i.micro == 5 ? 1 : 2);
  }
}

TEST(Homes, an_update_waits_for_its_state_and_the_disk_reads_one_chunk_ahead) {
  ScheduleShape shape{cyclic_chunks(1, 3), 2, {Home::nvme, Home::device}};
  const Program program = lowered("breadth_first", shape)[0];
  std::string order;
  bool normed = false;
  for (const Instruction& i : program) {
    normed |= i.op == Op::norm;
    if (!normed) continue;
    const char* name = i.op == Op::load_state      ? "L"
                       : i.op == Op::update        ? "U"
                       : i.op == Op::save_state    ? "S"
                       : i.op == Op::fetch_weights ? "F"
                                                   : nullptr;
    if (name) order += name + std::to_string(i.chunk) + " ";
  }
  EXPECT_EQ(order, "L0 L1 U0 S0 F0 L2 U1 S1 F1 U2 S2 F2 ");
}

TEST(Homes, early_updates_follow_the_gradients_and_put_every_fourth_chunk_off) {
  ScheduleShape shape{cyclic_chunks(1, 4), 1, {Home::nvme, Home::device}, true};
  const Program program = lowered("breadth_first", shape, {.gather_shards = true})[0];
  std::string order;
  for (const Instruction& i : program) {
    const char* name = i.op == Op::reduce_gradients ? "R"
                       : i.op == Op::load_state     ? "L"
                       : i.op == Op::update         ? "U"
                       : i.op == Op::save_state     ? "S"
                       : i.op == Op::fetch_weights  ? "F"
                       : i.op == Op::gather_weights ? "G"
                       : i.op == Op::norm           ? "N"
                                                    : nullptr;
    if (name) order += name + (i.chunk < 0 ? "" : std::to_string(i.chunk)) + " ";
  }
  EXPECT_EQ(order, "R3 R2 L2 L1 U2 S2 R1 L0 U1 S1 R0 L3 U0 S0 U3 S3 F0 G0 F1 G1 F2 G2 F3 G3 N ");
}

// Of one step among several, from norm to norm.
double step_time(const std::vector<Program>& programs, const ScheduleShape& shape,
                 const Costs& costs) {
  constexpr int kSteps = 6;
  std::vector<double> ends(kSteps);
  for (const Span& span : simulate(programs, shape, costs, kSteps).spans)
    if (span.rank == 0 && span.instruction.op == Op::norm)
      ends[static_cast<size_t>(span.step)] = span.end;
  return (ends[kSteps - 1] - ends[kSteps - 3]) / 2;
}

// Backward with recomputation takes three times as long as forward.
TEST(Homes, an_optimizer_on_the_host_works_beside_forward_and_early_beside_backward_too) {
  constexpr int kChunks = 10, kMicros = 16;
  ScheduleShape shape{cyclic_chunks(1, kChunks), kMicros, {Home::host, Home::device}};
  const LowerOptions options{.recompute = true};
  const auto late = lowered("breadth_first", shape, options);
  shape.early_updates = true;
  const auto early = lowered("breadth_first", shape, options);
  const double forward = kChunks * kMicros, backward = 3 * forward;
  // Where host and device take equally long, each waits for the other's first chunk of ten.
  const auto beside = [&](double host) { return host == forward + backward ? 1.18 : 1.10; };
  for (double host : {0.25 * forward, forward, 2 * forward, backward, forward + backward,
                      1.6 * (forward + backward), 3 * (forward + backward)}) {
    const Costs costs{.recompute = 1, .update = host / kChunks};
    shape.early_updates = false;
    EXPECT_LE(step_time(late, shape, costs), 1.10 * (backward + std::max(forward, host))) << host;
    shape.early_updates = true;
    EXPECT_LE(step_time(early, shape, costs), beside(host) * std::max(forward + backward, host))
        << host;
  }
}

std::string fault_of(const std::vector<Program>& programs, const ScheduleShape& shape) {
  try {
    validate(programs, shape);
  } catch (const std::exception& error) { return error.what(); }
  return "";
}

TEST(Homes, a_missing_step_is_found) {
  const auto without = [](Op op, const Homes& homes) {
    ScheduleShape shape{cyclic_chunks(2, 2), 3, homes};
    auto programs = lowered("interleaved", shape, {.recompute = true, .gather_shards = true});
    bool erased = false;
    std::erase_if(programs[0], [&](const Instruction& i) {
      const bool first = i.op == op && !erased;
      erased |= first;
      return first;
    });
    EXPECT_TRUE(erased) << name_of(op);
    return fault_of(programs, shape);
  };
  const Homes host{Home::host, Home::host, ActivationStore::host};
  const Homes nvme{Home::nvme, Home::nvme};
  const auto early_fault = [](Op moved, bool to_end) {
    ScheduleShape shape{cyclic_chunks(1, 2), 2, {Home::host, Home::device}, true};
    auto programs = lowered("breadth_first", shape);
    Program& program = programs[0];
    const auto at = std::find_if(program.begin(), program.end(),
                                 [&](const Instruction& i) { return i.op == moved; });
    if (to_end) std::rotate(at, at + 1, program.end());
    else program.erase(at);
    return fault_of(programs, shape);
  };
  EXPECT_NE(early_fault(Op::update, true), "");
  EXPECT_NE(early_fault(Op::update, false), "");
  EXPECT_NE(early_fault(Op::norm, false), "");
  EXPECT_NE(without(Op::offload_gradients, host), "");
  EXPECT_NE(without(Op::fetch_weights, host), "");
  EXPECT_NE(without(Op::store_activation, host), "");
  EXPECT_NE(without(Op::fetch_weights, {Home::host, Home::device}), "");
  EXPECT_NE(without(Op::load_state, nvme), "");
  EXPECT_NE(without(Op::save_state, nvme), "");
  EXPECT_NE(without(Op::save_weights, nvme), "");
  EXPECT_NE(without(Op::load_weights, nvme), "");
}

}  // namespace
}  // namespace voltapile
