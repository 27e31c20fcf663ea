// Programs with buffers that are used again: they still end, and a buffer that rests for one
// compute instruction before its next use costs no time.
#include <algorithm>
#include <map>
#include <tuple>

#include <gtest/gtest.h>

#include "voltapile/schedule/schedule.hpp"

#include "shapes.hpp"

namespace voltapile {
namespace {

using Key = std::tuple<Value, int, int>;
struct Life {
  int first, last;  // positions in the program
};

std::map<Key, Life> lives(const Program& program, int rank, const ChunkTable& chunks) {
  std::map<Key, Life> result;
  for (int at = 0; at < static_cast<int>(program.size()); ++at)
    for (const Operand& o : operands(program[static_cast<size_t>(at)], chunks))
      if (!is_persistent(o.value))
        result.try_emplace({o.value, o.chunk, o.micro}, Life{at, at}).first->second.last = at;
  return result;
}

// As few buffers as lives allow, the one that was free for the shortest time first: what holds most
// back. `rest`: compute instructions for which a boundary buffer stays alone after its last use.
class Buffers {
 public:
  Buffers(const std::vector<Program>& programs, const ScheduleShape& shape, int rest) {
    for (int rank = 0; rank < shape.chunks.ranks; ++rank) {
      const Program& program = programs[static_cast<size_t>(rank)];
      std::vector<std::pair<Life, Key>> order;
      for (auto [key, life] : lives(program, rank, shape.chunks)) {
        const Value value = std::get<0>(key);
        const bool crosses_lanes =
            value == Value::activation || value == Value::gradient || value == Value::gradients;
        for (int left = crosses_lanes ? rest : 0;
             left > 0 && life.last + 1 < static_cast<int>(program.size()); ++life.last)
          left -= program[static_cast<size_t>(life.last) + 1].lane == Lane::compute;
        order.push_back({life, key});
      }
      std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
        return std::tie(a.first.first, a.second) < std::tie(b.first.first, b.second);
      });
      std::map<Value, std::vector<std::pair<int, int>>> pools;  // last use, number
      for (const auto& [life, key] : order) {
        auto& pool = pools[std::get<0>(key)];
        std::pair<int, int>* best = nullptr;
        for (auto& buffer : pool)
          if (buffer.first < life.first && (!best || buffer.first > best->first)) best = &buffer;
        if (!best) best = &pool.emplace_back(0, count_++);
        best->first = life.last;
        number_[{rank, key}] = best->second;
      }
    }
  }
  MemoryOf memory() const {
    return [this](int rank, Value value, int chunk, int micro) {
      const auto found = number_.find({rank, {value, chunk, micro}});
      return found == number_.end() ? -1 : found->second;
    };
  }

 private:
  int count_ = 0;
  std::map<std::pair<int, Key>, int> number_;
};

class WithFewBuffers : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, WithFewBuffers, testing::ValuesIn(schedule_names()),
                         [](const auto& param) { return "of_" + param.param; });

TEST_P(WithFewBuffers, programs_end) {
  for (const ScheduleShape& shape : shape_grid(GetParam())) {
    const auto programs = lowered(GetParam(), shape, {true, true, true});
    const Buffers buffers(programs, shape, 0);
    ASSERT_NO_THROW(simulate(programs, shape, {}, 3, buffers.memory())) << show(GetParam(), shape);
  }
}

TEST_P(WithFewBuffers, a_buffer_that_rests_for_one_compute_instruction_costs_no_time) {
  Costs costs;
  costs.transfer = 0.07;
  costs.reduce = 1;
  for (const ScheduleShape& shape : shape_grid(GetParam())) {
    const auto programs = lowered(GetParam(), shape);
    const auto time = [&](const MemoryOf& memory) {
      const Timeline timeline = simulate(programs, shape, costs, 2, memory);
      return bubble(timeline, shape.chunks.ranks, 1).fraction;
    };
    const Buffers buffers(programs, shape, 1);
    ASSERT_NEAR(time(buffers.memory()), time({}), 1e-9) << show(GetParam(), shape);
  }
}

TEST(FewBuffers, without_a_rest_hold_transfers_back) {
  const ScheduleShape shape{cyclic_chunks(4, 4), 16};
  const auto programs = lowered("breadth_first", shape);
  Costs costs;
  costs.transfer = 0.07;
  const Buffers buffers(programs, shape, 0);
  EXPECT_GT(bubble(simulate(programs, shape, costs, 2, buffers.memory()), 4, 1).fraction,
            bubble(simulate(programs, shape, costs, 2), 4, 1).fraction + 0.005);
}

}  // namespace
}  // namespace voltapile
