#include "voltapile/schedule/timeline.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

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
  double total = 0, on_weights = 0;
};

constexpr bool makes_weights(Op op) {
  return op == Op::update || op == Op::fetch_weights || op == Op::gather_weights;
}

constexpr bool begins_backward(Op op) { return op == Op::backward || op == Op::backward_input; }
constexpr bool reads_weights(Op op) {
  return op == Op::forward || op == Op::recompute || begins_backward(op);
}

// Why ranks compute nothing in a step.
class IdleTime {
 public:
  IdleTime(const Timeline& timeline, int ranks, int64_t step)
      : step_(step), ranks_(static_cast<size_t>(ranks)) {
    for (const Span& span : timeline.spans) {
      VP_CHECK(span.rank >= 0 && span.rank < ranks, "a span of rank {} in {} ranks", span.rank,
               ranks);
      const Instruction& i = span.instruction;
      Rank& rank = ranks_[static_cast<size_t>(span.rank)];
      if (i.lane == Lane::compute) rank.compute.push_back(&span);
      if (makes_weights(i.op)) rank.weights[i.chunk].push_back(&span);
      if (is_receive(i.op)) rank.received[key_of(span)] = span.end;
      if (i.op == Op::forward || begins_backward(i.op)) made_[key_of(span)] = &span;
    }
    // Some take no time in a simulation.
    const auto earlier = [](const Span* a, const Span* b) {
      return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
    };
    for (Rank& rank : ranks_) {
      std::sort(rank.compute.begin(), rank.compute.end(), earlier);
      for (auto& [chunk, spans] : rank.weights) std::sort(spans.begin(), spans.end(), earlier);
    }
  }

  // Of `rank` in [begin, end). `asked`: ranks that wait for this one.
  Idle of(int rank, double begin, double end, size_t asked = 0) const {
    const auto& compute = ranks_[static_cast<size_t>(rank)].compute;
    Idle idle;
    double free = begin;
    auto at = std::partition_point(compute.begin(), compute.end(),
                                   [&](const Span* span) { return span->begin < begin; });
    if (at != compute.begin()) --at;  // it may end later
    for (; at != compute.end() && free < end; ++at) {
      const double until = std::min((*at)->begin, end);
      if (until > free) {
        idle.total += until - free;
        idle.on_weights += on_weights(**at, free, until, asked);
      }
      free = std::clamp((*at)->end, std::max(free, until), end);
    }
    idle.total += end - free;
    return idle;
  }

 private:
  // An activation or a gradient, by the chunk and micro-batch that made it.
  using Key = std::tuple<bool, int64_t, int, int>;
  struct Rank {
    std::vector<const Span*> compute;                 // in time
    std::map<int, std::vector<const Span*>> weights;  // that make a chunk's weights, in time
    std::map<Key, double> received;                   // when it was
  };

  // A transfer is numbered by the chunk that an activation enters and whose gradient comes back.
  static Key key_of(const Span& span) {
    const Instruction& i = span.instruction;
    const bool activation = i.op == Op::forward || i.op == Op::receive_activation;
    return {activation, span.step, i.op == Op::receive_activation ? i.chunk - 1 : i.chunk, i.micro};
  }

  // Of the idle time [begin, end) before `next`.
  double on_weights(const Span& next, double begin, double end, size_t asked) const {
    if (next.step > step_) return 0;  // the rank is done with the step
    const Instruction& i = next.instruction;
    const Rank& rank = ranks_[static_cast<size_t>(next.rank)];
    const Span* maker = nullptr;
    double arrival = begin;
    if (i.op == Op::forward || begins_backward(i.op)) {
      const bool forward = i.op == Op::forward;
      const Key input{forward, next.step, forward ? i.chunk - 1 : i.chunk + 1, i.micro};
      if (const auto made = made_.find(input); made != made_.end()) {
        maker = made->second;
        const auto received = rank.received.find(input);
        arrival = received != rank.received.end() ? received->second : maker->end;
      }
    }
    arrival = std::clamp(arrival, begin, end);
    double sum = std::clamp(ready(rank, next), arrival, end) - arrival;
    // Ranks that wait in a circle are no run's: a trace may still say so.
    if (maker != nullptr && maker->rank != next.rank && asked + 1 < ranks_.size()) {
      const double until = std::clamp(maker->begin, begin, arrival);
      sum += of(maker->rank, begin, until, asked + 1).on_weights;
    }
    return sum;
  }

  // When the weights that `next` reads were there.
  static double ready(const Rank& rank, const Span& next) {
    constexpr double kAlways = -std::numeric_limits<double>::infinity();
    const Instruction& i = next.instruction;
    const auto found = rank.weights.find(i.chunk);
    if (found == rank.weights.end() || !reads_weights(i.op)) return kAlways;
    const auto& spans = found->second;
    const auto later = std::partition_point(
        spans.begin(), spans.end(), [&](const Span* span) { return span->begin < next.begin; });
    return later == spans.begin() ? kAlways : (*std::prev(later))->end;
  }

  const int64_t step_;
  std::vector<Rank> ranks_;
  std::map<Key, const Span*> made_;
};

}  // namespace

Bubble bubble(const Timeline& timeline, int ranks, int64_t step) {
  VP_CHECK(ranks >= 1, "a timeline of {} ranks", ranks);
  Bubble result;
  result.per_rank.assign(static_cast<size_t>(ranks), 0);
  const Window window = window_of(timeline, step);
  const double length = window.end - window.begin;
  if (!(length > 0)) return result;

  // Its first forward waits for updates, too, and those begin after the step before it.
  const double before = window_of(timeline, step - 1).end;
  const double begin = std::isfinite(before) ? std::min(before, window.begin) : window.begin;
  const IdleTime idle_time(timeline, ranks, step);
  for (int rank = 0; rank < ranks; ++rank) {
    const Idle idle = idle_time.of(rank, window.begin, window.end);
    const double share = (idle.total - idle.on_weights) / length;
    result.per_rank[static_cast<size_t>(rank)] = share;
    result.fraction += share / ranks;
    const double on_weights = idle_time.of(rank, begin, window.begin).on_weights + idle.on_weights;
    result.exposed_optimizer += on_weights / (window.end - begin) / ranks;
  }
  return result;
}

}  // namespace voltapile
