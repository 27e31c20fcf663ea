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
          for (bool gather : {false, true}) {
            shape.homes = homes;
            const auto programs =
                lowered(schedule, shape, {.recompute = recompute, .gather_shards = gather});
            ASSERT_NO_THROW(validate(programs, shape))
                << show(schedule, shape) << " homes " << show(homes);
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
