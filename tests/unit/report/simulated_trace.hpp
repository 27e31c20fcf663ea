// For tests: the trace of a run that went exactly as simulate() says.
#pragma once
#include <cmath>
#include <map>

#include "voltapile/deck/parse.hpp"
#include "voltapile/plan/costs.hpp"
#include "voltapile/plan/plan.hpp"
#include "voltapile/trace/trace_file.hpp"

#include "../../support/sample_deck.hpp"

namespace voltapile::test {

inline constexpr int64_t kBegin = 1'790'000'000'000'000'000;

// Every pipeline of the mesh goes that way. Steps are numbered from `first`.
inline Trace simulated_trace(const Plan& plan, const Timeline& timeline, int64_t first = 5) {
  Trace trace{.mesh = plan.mesh, .deck = write_deck(plan.deck)};
  const auto ns = [](double seconds) { return kBegin + std::llround(seconds * 1e9); };
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    RankRecord record{.place = plan.mesh.rank_text(rank), .host = format("node{}", rank / 2)};
    std::map<int64_t, double> step_end;
    for (const Span& span : timeline.spans) {
      if (span.rank != plan.mesh.coord(rank).pp) continue;
      const Instruction& i = span.instruction;
      const InstructionCost cost = cost_of(plan, i);
      record.events.push_back({static_cast<int32_t>(i.op), static_cast<int32_t>(i.lane), i.chunk,
                               i.micro, first + span.step, ns(span.begin), ns(span.end), cost.bytes,
                               cost.flops});
      if (i.op == Op::norm) step_end[first + span.step] = span.end;
    }
    double begin = 0;
    for (const auto& [step, end] : step_end) {
      record.events.push_back({static_cast<int32_t>(HostWork::step), kMainLane, -1, -1, step,
                               ns(begin), ns(end), 0, 0});
      record.samples.push_back({.rank = rank,
                                .step = step,
                                .time_ns = ns(end),
                                .resident_bytes = 100'000'000 + 1000 * step});
      begin = end;
    }
    for (const MemoryLine& line : plan.memory(plan.mesh.coord(rank).pp))
      record.memory.push_back(
          {kBegin, line.name, static_cast<int64_t>(line.bytes), line.home == Home::device ? 0 : 1});
    trace.ranks.push_back(std::move(record));
  }
  return trace;
}

// Four pipeline ranks, eight blocks, six micro-batches.
inline Deck pipeline_deck(const std::string& schedule) {
  Deck deck = sample_deck();
  deck.path.clear();
  deck.precision.loss_scale = 1;  // f32 has no other, and a written deck says so
  deck.model.depth = 8;
  deck.parallel.pipeline = 4;
  deck.parallel.schedule = schedule;
  deck.parallel.chunks = schedule == "interleaved" || schedule == "breadth_first" ? 2 : 1;
  deck.batch.micro = 2;
  deck.batch.global = 16;
  return deck;
}

inline Costs uneven_costs() {
  return {.forward = 0.010,
          .backward_input = 0.011,
          .backward_weight = 0.009,
          .transfer = 0.0003,
          .reduce = 0.0002,
          .norm = 0.0005,
          .update = 0.0007,
          .load = 0.0001};
}

}  // namespace voltapile::test
