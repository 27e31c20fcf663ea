#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "voltapile/base/error.hpp"
#include "voltapile/schedule/schedule.hpp"

#include "events.hpp"
#include "shape.hpp"

namespace voltapile {

namespace {

constexpr int kSteadySteps = 3;

double duration(const Instruction& i, const Costs& costs, bool recompute_inside) {
  if (costs.of) return costs.of(i);
  const double weight = costs.chunk_weight.empty() || i.chunk < 0
                            ? 1
                            : costs.chunk_weight[static_cast<size_t>(i.chunk)];
  const double again = recompute_inside ? costs.recompute : 0;
  switch (i.op) {
    case Op::forward: return weight * costs.forward;
    case Op::recompute: return weight * costs.recompute;
    case Op::backward: return weight * (costs.backward_input + costs.backward_weight + again);
    case Op::backward_input: return weight * (costs.backward_input + again);
    case Op::backward_weight: return weight * costs.backward_weight;
    case Op::send_activation:
    case Op::receive_activation:
    case Op::send_gradient:
    case Op::receive_gradient: return costs.transfer;
    case Op::reduce_gradients: return costs.reduce;
    case Op::norm: return costs.norm;
    case Op::update: return costs.update;
    case Op::gather_weights: return costs.gather;
    case Op::load_batch: return costs.load;
    case Op::store_activation:
    case Op::fetch_activation: return costs.store;
    case Op::offload_gradients:
    case Op::fetch_weights: return costs.offload;
    case Op::load_weights:
    case Op::save_weights:
    case Op::load_state:
    case Op::save_state: return costs.disk;
    case Op::snapshot: return 0;
  }
  return 0;
}

// Events of all steps and what each waits for: its lanes' earlier work, and the hazards of its
// operands (a reader for the last writer, a writer for that and for the readers since).
class Graph {
 public:
  Graph(const std::vector<Program>& programs, const ScheduleShape& shape, const Events& events,
        int steps, const MemoryOf& memory)
      : waiting_(events.list.size() * static_cast<size_t>(steps)), followers_(waiting_.size()) {
    const OperandRules rules = shape.rules(is_training(programs));
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      std::map<Held, Use> uses;
      std::vector<std::vector<std::pair<Use*, Access>>> uses_of;
      for (const Instruction& i : programs[rank]) {
        auto& list = uses_of.emplace_back();
        for (const Operand& o : operands(i, shape.chunks, rules)) {
          const int shared =
              memory ? memory(static_cast<int>(rank), o.value, o.chunk, o.micro) : -1;
          Use& use = uses[shared < 0 ? Held{-1, o.value, o.chunk, o.micro}
                                     : Held{shared, Value{}, -1, -1}];
          list.push_back({&use, o.access});
        }
      }
      std::vector<size_t> lane_last(kLaneCount, kNone);
      for (int step = 0; step < steps; ++step)
        for (size_t position = 0; position < programs[rank].size(); ++position) {
          const size_t event = static_cast<size_t>(step) * events.list.size() +
                               static_cast<size_t>(events.of[rank][position]);
          size_t& before = lane_last[static_cast<size_t>(programs[rank][position].lane)];
          follow(before, event);
          before = event;
          for (const auto& [used, access] : uses_of[position]) use(*used, access, event);
        }
    }
  }

  // Calls visit(event, followers) for every event after all that it waits for.
  template <class Visit>
  size_t in_order(const Visit& visit) {
    std::vector<size_t> ready;
    for (size_t event = 0; event < waiting_.size(); ++event)
      if (waiting_[event] == 0) ready.push_back(event);
    size_t visited = 0;
    for (; !ready.empty(); ++visited) {
      const size_t event = ready.back();
      ready.pop_back();
      visit(event, followers_[event]);
      for (size_t follower : followers_[event])
        if (--waiting_[follower] == 0) ready.push_back(follower);
    }
    return visited;
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  using Held = std::tuple<int, Value, int16_t, int16_t>;  // shared memory, or a value's own
  struct Use {
    size_t writer = kNone;
    std::vector<size_t> readers;
  };

  void follow(size_t before, size_t event) {
    if (before == kNone || before == event) return;
    followers_[before].push_back(event);
    ++waiting_[event];
  }
  void use(Use& use, Access access, size_t event) {
    follow(use.writer, event);
    if (access == Access::read) {
      use.readers.push_back(event);
      return;
    }
    for (size_t reader : use.readers) follow(reader, event);
    use.readers.clear();
    use.writer = event;
  }

  std::vector<int> waiting_;
  std::vector<std::vector<size_t>> followers_;
};

}  // namespace

Timeline simulate(const std::vector<Program>& programs, const ScheduleShape& shape,
                  const Costs& costs, int steps, const MemoryOf& memory) {
  check_shape(shape);
  VP_CHECK(static_cast<int>(programs.size()) == shape.chunks.ranks, "{} programs for {} ranks",
           programs.size(), shape.chunks.ranks);
  VP_CHECK(costs.chunk_weight.empty() ||
               static_cast<int>(costs.chunk_weight.size()) == shape.chunks.chunks(),
           "{} chunk weights for {} chunks", costs.chunk_weight.size(), shape.chunks.chunks());
  const Events events = match_events(programs, shape);
  bool recompute_inside = true;
  for (const Program& program : programs)
    for (const Instruction& i : program) recompute_inside &= i.op != Op::recompute;

  const size_t per_step = events.list.size();
  std::vector<double> begin(per_step * static_cast<size_t>(steps)), end(begin.size());
  Graph graph(programs, shape, events, steps, memory);
  const size_t visited = graph.in_order([&](size_t event, const std::vector<size_t>& followers) {
    const ProgramPlace& first = events.list[event % per_step].members.front();
    end[event] =
        begin[event] +
        duration(programs[static_cast<size_t>(first.rank)][static_cast<size_t>(first.position)],
                 costs, recompute_inside);
    for (size_t follower : followers) begin[follower] = std::max(begin[follower], end[event]);
  });
  if (visited != begin.size())
    throw Error(ExitCode::failure,
                "the programs wait for each other in a circle: validate() says "
                "where");
  Timeline timeline;
  for (int step = 0; step < steps; ++step)
    for (size_t rank = 0; rank < programs.size(); ++rank)
      for (size_t position = 0; position < programs[rank].size(); ++position) {
        const size_t event =
            static_cast<size_t>(step) * per_step + static_cast<size_t>(events.of[rank][position]);
        timeline.spans.push_back(
            {static_cast<int>(rank), step, programs[rank][position], begin[event], end[event]});
      }
  return timeline;
}

SteadyState steady_state(const std::vector<Program>& programs, const ScheduleShape& shape,
                         const Costs& costs, const MemoryOf& memory) {
  const Timeline timeline = simulate(programs, shape, costs, kSteadySteps, memory);
  double ends[kSteadySteps] = {};
  for (const Span& span : timeline.spans)
    if (span.instruction.op == Op::norm) ends[span.step] = std::max(ends[span.step], span.end);
  return {ends[kSteadySteps - 1] - ends[kSteadySteps - 2],
          bubble(timeline, shape.chunks.ranks, kSteadySteps - 1)};
}

std::optional<double> bubble_formula(std::string_view name, const ScheduleShape& shape,
                                     const Costs& costs) {
  const double p = shape.chunks.ranks, m = shape.micros;
  const double v = shape.chunks.chunks() / p;
  if (shape.chunks.chunks() % shape.chunks.ranks != 0) return std::nullopt;
  if (name == "gpipe" || name == "1f1b") return (p - 1) / (m + p - 1);
  if (name == "interleaved" || name == "breadth_first") {
    if (!is_cyclic(shape.chunks) || (v > 1 && m < p)) return std::nullopt;
    return (p - 1) / (v * m + p - 1);
  }
  if (name == "zero_bubble_h1") {
    const double f = costs.forward, i = costs.backward_input + costs.recompute,
                 w = costs.backward_weight;
    if (p == 1) return 0;
    if (w > std::min(f, i) || m < p) return std::nullopt;
    return (p - 1) * (f + i - w) / (m * (f + i + w) + (p - 1) * (f + i - w));
  }
  return std::nullopt;
}

}  // namespace voltapile
