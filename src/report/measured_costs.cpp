#include "measured_costs.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace voltapile {
namespace {

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double tenth_percentile(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 10);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

MeasuredCosts measured_costs(const Trace& trace, const Plan& plan) {
  std::array<std::vector<double>, kOpCount> seconds;
  std::vector<std::array<std::vector<double>, kOpCount>> by_chunk(plan.chunks.size());
  for (const RankRecord& rank : trace.ranks)
    for (const TraceEvent& event : rank.events) {
      if (event.name >= kOpCount) continue;
      const double length = 1e-9 * static_cast<double>(event.end_ns - event.begin_ns);
      seconds[static_cast<size_t>(event.name)].push_back(length);
      if (event.chunk >= 0)
        by_chunk[static_cast<size_t>(event.chunk)][static_cast<size_t>(event.name)].push_back(
            length);
    }
  const auto of = [&](Op op) -> const std::vector<double>& {
    return seconds[static_cast<size_t>(op)];
  };
  MeasuredCosts measured;
  double sum = 0;
  for (const auto& chunk : by_chunk) {
    double all = 0;
    for (const Op op :
         {Op::forward, Op::recompute, Op::backward, Op::backward_input, Op::backward_weight})
      all += mean(chunk[static_cast<size_t>(op)]);
    measured.chunk_seconds.push_back(all);
    sum += all;
  }
  Costs& costs = measured.costs;
  costs.forward = mean(of(Op::forward));
  // Whole backwards are input and weight gradients together; which is which does not matter then.
  costs.backward_input = mean(of(Op::backward)) + mean(of(Op::backward_input));
  costs.backward_weight = mean(of(Op::backward_weight));
  costs.recompute = mean(of(Op::recompute));
  costs.transfer = tenth_percentile(of(Op::receive_activation));
  costs.reduce = tenth_percentile(of(Op::reduce_gradients));
  costs.norm = tenth_percentile(of(Op::norm));
  costs.update = mean(of(Op::update));
  costs.gather = tenth_percentile(of(Op::gather_weights));
  costs.load = mean(of(Op::load_batch));
  if (sum > 0)
    for (const double chunk : measured.chunk_seconds)
      costs.chunk_weight.push_back(chunk * static_cast<double>(by_chunk.size()) / sum);
  return measured;
}

MemoryOf memory_of(const Plan& plan) {
  return [&plan](int rank, Value value, int chunk, int micro) {
    const BufferPlan& buffers = plan.train.buffers[static_cast<size_t>(rank)];
    const int slot = buffers.slot(value, chunk, micro);
    if (slot < 0) return -1;
    return slot * kValueCount + static_cast<int>(buffers.pool(value).stored_in);
  };
}

}  // namespace voltapile
