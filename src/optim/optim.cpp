#include "voltapile/optim/optim.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace voltapile {
namespace {

const Parameter& parameter_of(const Architecture& a, const FlatEntry& entry) {
  return a.layers[static_cast<size_t>(entry.layer)]
      .parameters[static_cast<size_t>(entry.parameter)];
}

// [begin, end) cut to the shard and counted from its first element.
Range within(Range shard, int64_t begin, int64_t end) {
  return {std::max(begin, shard.begin) - shard.begin, std::min(end, shard.end) - shard.begin};
}

}  // namespace

double learning_rate(const Deck::Optimizer& o, int64_t step, int64_t total) {
  if (step < o.warmup_steps)
    return o.lr * static_cast<double>(step + 1) / static_cast<double>(o.warmup_steps);
  if (o.schedule == LearningRateSchedule::constant) return o.lr;
  if (step >= total) return o.min_lr;
  const double progress =
      static_cast<double>(step - o.warmup_steps) / static_cast<double>(total - o.warmup_steps);
  const double left = o.schedule == LearningRateSchedule::linear
                          ? 1 - progress
                          : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return o.min_lr + (o.lr - o.min_lr) * left;
}

double first_loss_scale(const Deck::Precision& precision) {
  if (precision.type != DType::f16) return 1;
  return precision.loss_scale.value_or(precision.initial_loss_scale);
}

Range shard(const FlatLayout& layout, int zero, int dp, int dp_rank) {
  if (zero == 0) return {0, layout.elements};
  VP_CHECK(layout.elements % dp == 0, "{} elements over {} data ranks", layout.elements, dp);
  const int64_t part = layout.elements / dp;
  return {dp_rank * part, (dp_rank + 1) * part};
}

std::vector<UpdateRun> update_runs(const Architecture& a, const FlatLayout& layout, Range shard,
                                   double layer_decay) {
  std::vector<UpdateRun> runs;
  const int last_layer = static_cast<int>(a.layers.size()) - 1;
  for (size_t i = 0; i < layout.entries.size(); ++i) {
    const FlatEntry& entry = layout.entries[i];
    const Parameter& p = parameter_of(a, entry);
    if (!p.is_updated()) continue;
    const bool last = i + 1 == layout.entries.size();
    const Range r =
        within(shard, entry.offset, last ? layout.elements : layout.entries[i + 1].offset);
    if (r.begin >= r.end) continue;
    const UpdateRun run{r.begin, r.end, std::pow(layer_decay, last_layer - entry.layer),
                        p.decay ? 1.0 : 0.0};
    const bool alike = !runs.empty() && runs.back().end == run.begin &&
                       runs.back().rate == run.rate && runs.back().decay == run.decay;
    if (alike) runs.back().end = run.end;
    else runs.push_back(run);
  }
  return runs;
}

std::vector<Range> joined(const std::vector<UpdateRun>& runs) {
  std::vector<Range> ranges;
  for (const UpdateRun& run : runs) {
    if (!ranges.empty() && ranges.back().end == run.begin) ranges.back().end = run.end;
    else ranges.push_back({run.begin, run.end});
  }
  return ranges;
}

std::vector<NormPiece> norm_pieces(const Architecture& a, const FlatLayout& layout, Range shard,
                                   const Mesh& mesh, Coord coord, int zero) {
  std::vector<NormPiece> pieces;
  if (zero == 0 && coord.dp != 0) return pieces;
  for (const FlatEntry& entry : layout.entries) {
    const Parameter& p = parameter_of(a, entry);
    if (!p.is_updated() || (p.split == Split::replicated && coord.tp != 0)) continue;
    // Padding is the tail of the local part: rows that no class has.
    int64_t held = entry.elements;
    if (p.split == Split::classes) {
      held = 0;
      for (const Rectangle& r : placement(p, mesh.tp, coord.tp)) held += r.rows * r.columns;
    }
    const Range r = within(shard, entry.offset, entry.offset + held);
    if (r.begin < r.end) pieces.push_back({r.begin, r.end, static_cast<int32_t>(p.id)});
  }
  return pieces;
}

std::vector<Range> tensor_partial_ranges(const Architecture& a, const FlatLayout& layout,
                                         const Mesh& mesh, bool sequence) {
  std::vector<Range> ranges;
  if (mesh.tp == 1) return ranges;
  bool follows = false;  // the entry before was partial too
  for (const FlatEntry& entry : layout.entries) {
    const TensorGradient kind = parameter_of(a, entry).tensor_gradient;
    const bool partial = kind == TensorGradient::partial ||
                         (kind == TensorGradient::partial_if_sequence && sequence);
    const int64_t end = entry.offset + entry.elements;
    if (partial && follows) ranges.back().end = end;
    else if (partial) ranges.push_back({entry.offset, end});
    follows = partial;
  }
  return ranges;
}

std::string parameter_name(const Architecture& a, int32_t id) {
  for (const Layer& layer : a.layers)
    for (const Parameter& p : layer.parameters)
      if (static_cast<int32_t>(p.id) == id) return p.name;
  return format("parameter {}", id);
}

}  // namespace voltapile
