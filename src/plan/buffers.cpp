#include "buffers.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "voltapile/base/error.hpp"

namespace voltapile {
namespace {

// Slots of one pool while a program is walked through.
class SlotPool {
 public:
  int take(size_t bytes) {
    const auto fit = std::lower_bound(
        free_.begin(), free_.end(), bytes,
        [this](int slot, size_t wanted) { return bytes_[static_cast<size_t>(slot)] < wanted; });
    int slot = static_cast<int>(bytes_.size());
    if (fit != free_.end()) {  // the smallest that is large enough
      slot = *fit;
      free_.erase(fit);
    } else if (!free_.empty()) {  // the largest, which grows least
      slot = free_.back();
      free_.pop_back();
      bytes_[static_cast<size_t>(slot)] = bytes;
    } else {
      bytes_.push_back(bytes);
    }
    return slot;
  }
  void give_back(int slot) {
    const size_t own = bytes_[static_cast<size_t>(slot)];
    const auto place = std::lower_bound(
        free_.begin(), free_.end(), own,
        [this](int other, size_t wanted) { return bytes_[static_cast<size_t>(other)] < wanted; });
    free_.insert(place, slot);
  }
  // The slot stays untouched until the next one comes to rest, so that the lane which writes the
  // next value need not wait for the lane which still reads this one: double buffering.
  void rest(int slot) {
    if (resting_ >= 0) give_back(resting_);
    resting_ = slot;
  }
  std::vector<size_t> bytes() && { return std::move(bytes_); }

 private:
  std::vector<size_t> bytes_;
  std::vector<int> free_;  // by size
  int resting_ = -1;
};

class Planner {
 public:
  Planner(const Program& program, int rank, const ScheduleShape& shape, const BufferRules& rules,
          const std::function<size_t(Value, int)>& bytes)
      : program_(program), rank_(rank), shape_(shape), rules_(rules), bytes_(bytes) {
    const auto places = static_cast<size_t>((shape.chunks.chunks() + 1) * (shape.micros + 1));
    plan_.micros = shape.micros;
    for (int v = 0; v < kValueCount; ++v) {
      const auto value = static_cast<Value>(v);
      plan_.pools.push_back({value, value, {}, std::vector<int>(places, -1)});
      uses_.emplace_back(places);
    }
  }

  BufferPlan plan() {
    place_persistent();
    for (size_t i = 0; i < program_.size(); ++i)
      for_each_place(i, [&](size_t v, size_t place) { uses_[v][place].add(i, program_[i].lane); });
    for (size_t i = 0; i < program_.size(); ++i) {
      // What an instruction reads and what it writes are alive together: first all are placed, then
      // those that die here are let go.
      for_each_place(i, [&](size_t v, size_t place) {
        int& slot = plan_.pools[v].slot_of[place];
        if (slot < 0) slot = slots_[v].take(bytes_(static_cast<Value>(v), chunk_of(place)));
      });
      for_each_place(i, [&](size_t v, size_t place) {
        const Use& use = uses_[v][place];
        if (use.last != i) return;
        const int slot = plan_.pools[v].slot_of[place];
        use.several_lanes ? slots_[v].rest(slot) : slots_[v].give_back(slot);
      });
    }
    for (size_t v = 0; v < plan_.pools.size(); ++v)
      if (!is_persistent(static_cast<Value>(v)))
        plan_.pools[v].slot_bytes = std::move(slots_[v]).bytes();
    if (rules_.reduced_in_place) {
      auto& reduced = plan_.pools[static_cast<size_t>(Value::reduced)];
      reduced.stored_in = Value::gradients;
      reduced.slot_of = plan_.pool(Value::gradients).slot_of;
    }
    return std::move(plan_);
  }

 private:
  struct Use {
    size_t last = 0;
    Lane lane{};
    bool seen = false, several_lanes = false;
    void add(size_t position, Lane on) {
      several_lanes |= seen && on != lane;
      seen = true;
      lane = on;
      last = position;
    }
  };

  size_t place_of(int chunk, int micro) const {
    return static_cast<size_t>((chunk + 1) * (shape_.micros + 1) + (micro + 1));
  }
  int chunk_of(size_t place) const { return static_cast<int>(place) / (shape_.micros + 1) - 1; }

  // Each value of an instruction that shares slots, once.
  template <class F>
  void for_each_place(size_t i, F&& use) const {
    const bool in_place = rules_.reduced_in_place;
    for (const Operand& operand : operands(program_[i], rank_, shape_.chunks, rules_.operands)) {
      if (is_persistent(operand.value)) continue;
      Value value = operand.value;
      if (in_place && value == Value::reduced) {
        if (program_[i].op == Op::reduce_gradients) continue;  // which names `gradients` already
        value = Value::gradients;
      }
      use(static_cast<size_t>(value), place_of(operand.chunk, operand.micro));
    }
  }

  void place_persistent() {
    const auto add = [&](Value value, int chunk, size_t bytes) {
      auto& pool = plan_.pools[static_cast<size_t>(value)];
      pool.slot_of[place_of(chunk, -1)] = static_cast<int>(pool.slot_bytes.size());
      pool.slot_bytes.push_back(bytes);
    };
    size_t workspace = 0;
    for (int chunk = 0; chunk < shape_.chunks.chunks(); ++chunk) {
      if (shape_.chunks.rank_of[static_cast<size_t>(chunk)] != rank_) continue;
      add(Value::weights, chunk, bytes_(Value::weights, chunk));
      add(Value::state, chunk, bytes_(Value::state, chunk));
      workspace = std::max(workspace, bytes_(Value::workspace, chunk));
    }
    add(Value::workspace, -1, workspace);
    add(Value::step_state, -1, bytes_(Value::step_state, -1));
    add(Value::loss, -1, bytes_(Value::loss, -1));
  }

  const Program& program_;
  int rank_;
  const ScheduleShape& shape_;
  const BufferRules& rules_;
  const std::function<size_t(Value, int)>& bytes_;
  BufferPlan plan_;
  std::vector<std::vector<Use>> uses_;  // by value and place
  std::array<SlotPool, kValueCount> slots_;
};

}  // namespace

size_t BufferPlan::bytes(Value value) const {
  const auto& slots = pool(value).slot_bytes;
  return std::accumulate(slots.begin(), slots.end(), size_t{0});
}

BufferPlan plan_buffers(const Program& program, int rank, const ScheduleShape& shape,
                        const BufferRules& rules,
                        const std::function<size_t(Value, int chunk)>& bytes) {
  return Planner(program, rank, shape, rules, bytes).plan();
}

void share_slots(BufferPlan& a, BufferPlan& b) {
  for (size_t v = 0; v < a.pools.size(); ++v) {
    auto &first = a.pools[v].slot_bytes, &second = b.pools[v].slot_bytes;
    const size_t slots = std::max(first.size(), second.size());
    first.resize(slots);
    second.resize(slots);
    for (size_t i = 0; i < slots; ++i) first[i] = second[i] = std::max(first[i], second[i]);
  }
}

}  // namespace voltapile
