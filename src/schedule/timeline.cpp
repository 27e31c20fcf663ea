#include "voltapile/schedule/timeline.hpp"

#include <algorithm>
#include <limits>

#include "voltapile/base/error.hpp"

#include "shape.hpp"

namespace voltapile {

namespace {

struct Window {
  double begin = std::numeric_limits<double>::infinity(), end = -begin;
};

Window window_of(const Timeline& timeline, int64_t step) {
  Window window;
  double last_forward = window.end;
  for (const Span& span : timeline.spans) {
    if (span.step != step) continue;
    if (span.instruction.op == Op::forward) {
      window.begin = std::min(window.begin, span.begin);
      last_forward = std::max(last_forward, span.end);
    }
    if (is_backward(span.instruction.op)) window.end = std::max(window.end, span.end);
  }
  window.end = std::max(window.end, last_forward);  // evaluation has no backward
  return window;
}

struct Idle {
  double total = 0, on_update = 0;
};

// `compute` in time. `ready`: when each chunk's weights had their last update before the step.
Idle idle_time(const std::vector<const Span*>& compute, const std::vector<double>& ready,
               const Window& window, int64_t step) {
  Idle idle;
  double free = window.begin;
  for (const Span* span : compute) {
    const double until = std::min(span->begin, window.end);
    if (until > free) {
      idle.total += until - free;
      const Instruction& i = span->instruction;
      if (span->step == step && i.op == Op::forward)
        idle.on_update += std::clamp(ready[static_cast<size_t>(i.chunk)], free, until) - free;
    }
    free = std::clamp(span->end, free, window.end);
  }
  idle.total += window.end - free;
  return idle;
}

}  // namespace

Bubble bubble(const Timeline& timeline, int ranks, int64_t step) {
  VP_CHECK(ranks >= 1, "a timeline of {} ranks", ranks);
  Bubble result;
  result.per_rank.assign(static_cast<size_t>(ranks), 0);
  const Window window = window_of(timeline, step);
  const double length = window.end - window.begin;
  if (!(length > 0)) return result;

  std::vector<std::vector<const Span*>> compute(static_cast<size_t>(ranks));
  std::vector<std::vector<double>> ready(static_cast<size_t>(ranks));
  int chunks = 0;
  for (const Span& span : timeline.spans) chunks = std::max(chunks, span.instruction.chunk + 1);
  for (auto& times : ready) times.assign(static_cast<size_t>(chunks), window.begin);
  for (const Span& span : timeline.spans) {
    VP_CHECK(span.rank >= 0 && span.rank < ranks, "a span of rank {} in {} ranks", span.rank,
             ranks);
    const auto rank = static_cast<size_t>(span.rank);
    const Instruction& i = span.instruction;
    if (i.lane == Lane::compute) compute[rank].push_back(&span);
    if ((i.op == Op::update || i.op == Op::gather_weights) && span.step < step) {
      double& time = ready[rank][static_cast<size_t>(i.chunk)];
      time = std::max(time, span.end);
    }
  }
  for (size_t rank = 0; rank < compute.size(); ++rank) {
    std::sort(compute[rank].begin(), compute[rank].end(),
              [](const Span* a, const Span* b) { return a->begin < b->begin; });
    const Idle idle = idle_time(compute[rank], ready[rank], window, step);
    result.per_rank[rank] = (idle.total - idle.on_update) / length;
    result.fraction += result.per_rank[rank] / ranks;
    result.exposed_optimizer += idle.on_update / length / ranks;
  }
  return result;
}

}  // namespace voltapile
