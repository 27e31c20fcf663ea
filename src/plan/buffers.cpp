#include "buffers.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "voltapile/base/error.hpp"

namespace voltapile {
namespace {

// From the first instruction that touches a value to the last, both included.
struct Life {
  size_t first = 0, last = 0;
  Lane lane{};
  bool several_lanes = false;
};
// The lives of one value in a step. It has the same slot in all of them.
struct Tenant {
  size_t place = 0;  // index into ValuePool::slot_of
  std::vector<Life> lives;
};

// Slots of one pool and when each is taken.
class SlotPool {
 public:
  // The smallest free slot that is large enough, else the largest free one, which grows least, else
  // a new one.
  int take(size_t bytes, const std::vector<Life>& lives) {
    int best = -1;
    for (int slot = 0; slot < static_cast<int>(bytes_.size()); ++slot)
      if (is_free(slot, lives) && (best < 0 || is_better(slot, best, bytes))) best = slot;
    if (best < 0) {
      best = static_cast<int>(bytes_.size());
      bytes_.push_back(0);
      taken_.emplace_back();
    }
    size_t& own = bytes_[static_cast<size_t>(best)];
    own = std::max(own, bytes);
    auto& taken = taken_[static_cast<size_t>(best)];
    for (const Life& life : lives) taken.emplace(life.last, life.first);
    return best;
  }
  std::vector<size_t> bytes() && { return std::move(bytes_); }

 private:
  bool is_free(int slot, const std::vector<Life>& lives) const {
    const auto& taken = taken_[static_cast<size_t>(slot)];
    for (const Life& life : lives) {
      const auto other = taken.lower_bound(life.first);  // the first that ends in it or later
      if (other != taken.end() && other->second <= life.last) return false;
    }
    return true;
  }
  bool is_better(int slot, int best, size_t wanted) const {
    const size_t a = bytes_[static_cast<size_t>(slot)], b = bytes_[static_cast<size_t>(best)];
    const bool fits = a >= wanted, best_fits = b >= wanted;
    if (fits != best_fits) return fits;
    return fits ? a < b : a > b;
  }

  std::vector<size_t> bytes_;
  std::vector<std::map<size_t, size_t>> taken_;  // by slot: last to first instruction of each life
};

// What h2d or disk bring one run ahead: two slots take turns already, and a slot that is written
// has been idle for a run.
bool comes_ahead(Value value) { return value == Value::weights || value == Value::state; }

class Planner {
 public:
  Planner(const Program& program, int rank, const ScheduleShape& shape, const BufferRules& rules,
          const std::function<size_t(Value, int)>& bytes)
      : program_(program), rank_(rank), shape_(shape), rules_(rules), bytes_(bytes) {
    const auto places = static_cast<size_t>((shape.chunks.chunks() + 1) * (shape.micros + 1));
    plan_.micros = shape.micros;
    for (int v = 0; v < kValueCount; ++v) {
      const auto value = static_cast<Value>(v);
      plan_.pools.push_back({value, value, rules.home_of(value), {}, std::vector<int>(places, -1)});
      tenant_of_.emplace_back(places, kNone);
    }
  }

  BufferPlan plan() {
    place_persistent();
    for (size_t i = 0; i < program_.size(); ++i) add_uses(i);
    for (size_t v = 0; v < plan_.pools.size(); ++v) {
      if (is_persistent(static_cast<Value>(v), shape_.homes)) continue;
      if (rules_.stored_in(static_cast<Value>(v)) != static_cast<Value>(v)) continue;
      rest(static_cast<Value>(v));
      SlotPool slots;
      for (const Tenant& tenant : tenants_[v])
        plan_.pools[v].slot_of[tenant.place] =
            slots.take(slot_bytes(static_cast<Value>(v), chunk_of(tenant.place)), tenant.lives);
      plan_.pools[v].slot_bytes = std::move(slots).bytes();
    }
    for (ValuePool& pool : plan_.pools) {
      pool.stored_in = rules_.stored_in(pool.value);
      if (pool.stored_in != pool.value) pool.slot_of = plan_.pool(pool.stored_in).slot_of;
    }
    return std::move(plan_);
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  // On the device to where every kernel may begin, on the host to whole pages, which a disk takes
  // without a copy.
  size_t slot_bytes(Value value, int chunk) const {
    const size_t alignment = rules_.home_of(value) == Home::device ? 256 : 4096;
    return (bytes_(value, chunk) + alignment - 1) / alignment * alignment;
  }
  size_t place_of(int chunk, int micro) const {
    return static_cast<size_t>((chunk + 1) * (shape_.micros + 1) + (micro + 1));
  }
  int chunk_of(size_t place) const { return static_cast<int>(place) / (shape_.micros + 1) - 1; }

  // Of each value of an instruction that shares slots, once.
  void add_uses(size_t i) {
    for (const Operand& operand :
         operands(program_[i], shape_.chunks, shape_.rules(rules_.training))) {
      if (is_persistent(operand.value, shape_.homes)) continue;
      const Value value = rules_.stored_in(operand.value);
      const bool begins = operand.access == Access::write && value == operand.value;
      add_use(static_cast<size_t>(value), place_of(operand.chunk, operand.micro), i, begins);
    }
  }

  void add_use(size_t v, size_t place, size_t i, bool begins) {
    size_t& number = tenant_of_[v][place];
    if (number == kNone) {
      number = tenants_[v].size();
      tenants_[v].push_back({place, {}});
    }
    auto& lives = tenants_[v][number].lives;
    const Lane lane = program_[i].lane;
    if (begins || lives.empty()) lives.push_back({i, i, lane, false});
    lives.back().several_lanes |= lane != lives.back().lane;
    lives.back().last = i;
  }

  // A value that several lanes touched goes on to hold its slot until the next such value dies, so
  // that the lane which writes there next need not wait for the lane which still reads: double
  // buffering.
  void rest(Value value) {
    if (comes_ahead(value)) return;
    std::vector<Life*> ends;
    for (Tenant& tenant : tenants_[static_cast<size_t>(value)])
      for (Life& life : tenant.lives)
        if (life.several_lanes) ends.push_back(&life);
    std::sort(ends.begin(), ends.end(),
              [](const Life* a, const Life* b) { return a->last < b->last; });
    for (size_t i = 0; i < ends.size(); ++i)
      ends[i]->last = i + 1 < ends.size() ? ends[i + 1]->last : program_.size();
    // A slot that is its own tenant's again needs no rest.
    for (Tenant& tenant : tenants_[static_cast<size_t>(value)])
      for (size_t i = 0; i + 1 < tenant.lives.size(); ++i)
        tenant.lives[i].last = std::min(tenant.lives[i].last, tenant.lives[i + 1].first - 1);
  }

  void place_persistent() {
    const auto add = [&](Value value, int chunk, size_t bytes) {
      if (!is_persistent(value, shape_.homes)) return;
      auto& pool = plan_.pools[static_cast<size_t>(value)];
      pool.slot_of[place_of(chunk, -1)] = static_cast<int>(pool.slot_bytes.size());
      pool.slot_bytes.push_back(bytes);
    };
    size_t workspace = 0;
    for (int chunk = 0; chunk < shape_.chunks.chunks(); ++chunk) {
      if (shape_.chunks.rank_of[static_cast<size_t>(chunk)] != rank_) continue;
      for (Value value : {Value::weights, Value::host_weights, Value::state})
        add(value, chunk, slot_bytes(value, chunk));
      workspace = std::max(workspace, slot_bytes(Value::workspace, chunk));
    }
    add(Value::workspace, -1, workspace);
    for (Value value : {Value::step_state, Value::multiplier, Value::norm_sums, Value::loss})
      add(value, -1, slot_bytes(value, -1));
  }

  const Program& program_;
  int rank_;
  const ScheduleShape& shape_;
  const BufferRules& rules_;
  const std::function<size_t(Value, int)>& bytes_;
  BufferPlan plan_;
  std::vector<std::vector<size_t>> tenant_of_;            // by value and place: index into tenants_
  std::array<std::vector<Tenant>, kValueCount> tenants_;  // in order of their first lives
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
