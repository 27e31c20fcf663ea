#include <algorithm>
#include <map>

#include "voltapile/report/report.hpp"

#include "figures.hpp"
#include "intervals.hpp"
#include "measured_costs.hpp"
#include "transfers.hpp"

namespace voltapile {
namespace {

constexpr int64_t kMostSimulated = 8;  // of a long trace's last steps

bool is(const TraceEvent& event, HostWork work) { return event.name == static_cast<int32_t>(work); }
bool is(const TraceEvent& event, Op op) { return event.name == static_cast<int32_t>(op); }

bool computes_layers(const TraceEvent& event) {
  return is(event, Op::forward) || is(event, Op::recompute) || is(event, Op::backward) ||
         is(event, Op::backward_input) || is(event, Op::backward_weight);
}

struct Window {
  int64_t begin = 0, end = 0;
};

// From the first traced instruction, or the first traced step's begin if that is later, to the last
// traced step's end: the steps before and after, which overlap these, were not traced.
Window window_of(const RankRecord& rank) {
  int64_t first_instruction = 0, first_step = 0, end = 0;
  for (const TraceEvent& event : rank.events) {
    const auto earliest = [&](int64_t& time) {
      time = time == 0 ? event.begin_ns : std::min(time, event.begin_ns);
    };
    if (event.name < kOpCount) earliest(first_instruction);
    if (!is(event, HostWork::step)) continue;
    earliest(first_step);
    end = std::max(end, event.end_ns);
  }
  return {std::max(first_instruction, first_step), end};
}

RankShare share_of(const RankRecord& rank) {
  const Window window = window_of(rank);
  RankShare share{.place = rank.place, .host = rank.host};
  share.wall_seconds = 1e-9 * static_cast<double>(window.end - window.begin);
  if (window.end <= window.begin) return share;
  std::array<Intervals, kEventLanes> lanes;
  Intervals layers, reductions, receives, updates, data_wait, issue, all;
  for (const TraceEvent& event : rank.events) {
    if (is(event, HostWork::step) || is(event, HostWork::step_wait)) continue;
    const auto add = [&](Intervals& set) { set.add(event.begin_ns, event.end_ns); };
    add(lanes[static_cast<size_t>(event.lane)]);
    add(all);
    if (computes_layers(event)) {
      add(layers);
      share.compute_seconds += 1e-9 * static_cast<double>(event.end_ns - event.begin_ns);
      share.compute_flops += event.flops;
    }
    if (is(event, Op::reduce_gradients) || is(event, Op::gather_weights)) add(reductions);
    if (is(event, Op::receive_activation) || is(event, Op::receive_gradient)) add(receives);
    if (is(event, Op::update)) add(updates);
    if (is(event, HostWork::data_wait)) add(data_wait);
    if (is(event, HostWork::issue)) add(issue);
  }
  const auto fraction = [&](const Intervals& set) {
    return static_cast<double>(set.within(window.begin, window.end).length()) /
           static_cast<double>(window.end - window.begin);
  };
  for (size_t lane = 0; lane < lanes.size(); ++lane) share.busy[lane] = fraction(lanes[lane]);
  const Intervals& compute = lanes[static_cast<size_t>(Lane::compute)];
  share.exposed_reduction = fraction(reductions.without(compute));
  share.pipeline_wait = fraction(receives.without(compute));
  share.optimizer = fraction(updates.without(layers));
  share.data_wait = fraction(data_wait);
  share.issue = fraction(issue);
  share.covered = fraction(all);
  return share;
}

std::vector<OperationShare> operations_of(const Trace& trace) {
  std::vector<OperationShare> shares(kEventNames);
  for (int32_t name = 0; name < kEventNames; ++name) shares[static_cast<size_t>(name)].name = name;
  for (const RankRecord& rank : trace.ranks)
    for (const TraceEvent& event : rank.events) {
      OperationShare& share = shares[static_cast<size_t>(event.name)];
      const double seconds = 1e-9 * static_cast<double>(event.end_ns - event.begin_ns);
      ++share.count;
      share.seconds += seconds;
      share.longest_seconds = std::max(share.longest_seconds, seconds);
      share.flops += event.flops;
      share.bytes += static_cast<double>(event.bytes);
    }
  std::erase_if(shares, [](const OperationShare& share) {
    return share.count == 0 || share.name == static_cast<int32_t>(HostWork::step);
  });
  std::stable_sort(shares.begin(), shares.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return shares;
}

// By step, in seconds since one of the pipeline's events, so that doubles keep nanoseconds.
using SpansByStep = std::map<int64_t, std::vector<Span>>;

SpansByStep spans_of_pipeline(const Trace& trace, Coord coord) {
  std::optional<int64_t> begin;
  SpansByStep steps;
  for (coord.pp = 0; coord.pp < trace.mesh.pp; ++coord.pp)
    for (const TraceEvent& event :
         trace.ranks[static_cast<size_t>(trace.mesh.rank(coord))].events) {
      if (event.name >= kOpCount) continue;
      if (!begin) begin = event.begin_ns;  // near enough to all others
      const Instruction instruction{static_cast<Op>(event.name), static_cast<Lane>(event.lane),
                                    static_cast<int16_t>(event.chunk),
                                    static_cast<int16_t>(event.micro)};
      steps[event.step].push_back({coord.pp, event.step, instruction,
                                   1e-9 * static_cast<double>(event.begin_ns - *begin),
                                   1e-9 * static_cast<double>(event.end_ns - *begin)});
    }
  return steps;
}

// Whether a step's first instructions wait for what another lane still does for the step before.
bool updates_reach_over(const Plan& plan) {
  for (const Program& program : plan.train.programs)
    for (const Instruction& i : program)
      if (i.op == Op::gather_weights || (i.op == Op::update && i.lane != Lane::compute))
        return true;
  return false;
}

void measure_bubble(Analysis& analysis, const Trace& trace, const Plan& plan) {
  std::map<int64_t, Bubble> steps;  // means over the pipelines
  const double pipelines = plan.mesh.dp * plan.mesh.tp;
  for (int dp = 0; dp < plan.mesh.dp; ++dp)
    for (int tp = 0; tp < plan.mesh.tp; ++tp) {
      const SpansByStep spans = spans_of_pipeline(trace, {0, dp, tp});
      const bool alone = spans.size() == 1 && !updates_reach_over(plan);
      for (const auto& [step, list] : spans) {
        if (!alone && !spans.contains(step - 1)) continue;
        // Steps overlap with their neighbours only.
        Timeline timeline;
        for (int64_t near = step - 1; near <= step + 1; ++near) {
          const auto at = spans.find(near);
          if (at == spans.end()) continue;
          timeline.spans.insert(timeline.spans.end(), at->second.begin(), at->second.end());
        }
        const Bubble measured = bubble(timeline, plan.mesh.pp, step);
        steps[step].fraction += measured.fraction / pipelines;
        steps[step].exposed_optimizer += measured.exposed_optimizer / pipelines;
      }
    }
  if (steps.empty()) return;
  std::vector<double> fractions, exposed;
  for (const auto& [step, measured] : steps) {
    fractions.push_back(measured.fraction);
    exposed.push_back(measured.exposed_optimizer);
  }
  analysis.bubble = median(fractions);
  analysis.exposed_optimizer = median(exposed);
}

Trace one_step(const Trace& trace, int64_t step) {
  Trace one{.mesh = trace.mesh};
  for (const RankRecord& rank : trace.ranks) {
    RankRecord& record = one.ranks.emplace_back();
    for (const TraceEvent& event : rank.events)
      if (event.step == step) record.events.push_back(event);
  }
  return one;
}

// Each step by its own times: in a run of typical times nobody would wait for who was late.
void simulate_bubble(Analysis& analysis, const Trace& trace, const Plan& plan) {
  const MeasuredCosts measured = measured_costs(trace, plan);
  analysis.chunk_seconds = measured.chunk_seconds;
  std::vector<double> fractions, exposed;
  const int64_t first = std::max(trace.first_step() + 1, trace.end_step() - kMostSimulated);
  for (int64_t step = std::min(first, trace.end_step() - 1); step < trace.end_step(); ++step) {
    const Costs costs = measured_costs(one_step(trace, step), plan).costs;
    const Bubble simulated =
        steady_state(plan.train.programs, plan.train.shape, costs, memory_of(plan)).bubble;
    fractions.push_back(simulated.fraction);
    exposed.push_back(simulated.exposed_optimizer);
  }
  analysis.bubble_simulated = median(fractions);
  analysis.exposed_optimizer_simulated = median(exposed);
  analysis.bubble_formula =
      bubble_formula(plan.deck.parallel.schedule, plan.train.shape, measured.costs);
}

void require_same(const Trace& trace, const Plan& plan) {
  const bool same_mesh = trace.mesh == plan.mesh;
  bool fits = same_mesh && trace.ranks.size() == static_cast<size_t>(plan.mesh.size());
  for (const RankRecord& rank : trace.ranks)
    for (const TraceEvent& event : rank.events)
      fits &= event.chunk < static_cast<int32_t>(plan.chunks.size()) && event.chunk >= -1;
  if (fits) return;
  throw Error(ExitCode::bad_data,
              format("the trace is of the mesh {} and its deck is of {}, or of other chunks: it "
                     "cannot be looked at; remove trace.h5",
                     trace.mesh.text(), plan.mesh.text()));
}

}  // namespace

Analysis analyse(const Trace& trace, const Plan& plan) {
  require_same(trace, plan);
  Analysis analysis;
  analysis.first_step = trace.first_step();
  analysis.end_step = trace.end_step();
  analysis.operations = operations_of(trace);
  double step_seconds = 0;
  int64_t steps = 0;
  for (const RankRecord& rank : trace.ranks) {
    analysis.ranks.push_back(share_of(rank));
    for (const TraceEvent& event : rank.events) {
      if (!is(event, HostWork::step)) continue;
      step_seconds += 1e-9 * static_cast<double>(event.end_ns - event.begin_ns);
      ++steps;
    }
  }
  analysis.step_seconds = steps > 0 ? step_seconds / static_cast<double>(steps) : 0;
  analysis.coverage = 1;
  for (const RankShare& rank : analysis.ranks) {
    analysis.compute_busy +=
        rank.busy[static_cast<size_t>(Lane::compute)] / static_cast<double>(analysis.ranks.size());
    analysis.coverage = std::min(analysis.coverage, rank.covered);
  }
  if (steps > 0) {
    measure_bubble(analysis, trace, plan);
    simulate_bubble(analysis, trace, plan);
  }
  for (const RankRecord& rank : trace.ranks)
    analysis.skew_seconds =
        std::max(analysis.skew_seconds, 2e-9 * static_cast<double>(rank.clock_skew_ns));
  for (const MatchedTransfer& transfer : match_transfers(trace, plan)) {
    ++analysis.transfers;
    const double early =
        1e-9 * static_cast<double>(transfer.send->begin_ns - transfer.receive->end_ns);
    if (early > analysis.skew_seconds) ++analysis.impossible_transfers;
    analysis.longest_notice_seconds =
        std::max(analysis.longest_notice_seconds,
                 1e-9 * static_cast<double>(transfer.send->end_ns - transfer.receive->end_ns));
  }
  return analysis;
}

}  // namespace voltapile
