#include "measured_costs.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "figures.hpp"
#include "transfers.hpp"

namespace voltapile {
namespace {

using Key = std::tuple<Op, int, int>;  // chunk, micro-batch

bool is_joint(Op op) {
  return op == Op::reduce_gradients || op == Op::gather_weights || op == Op::norm;
}
bool is_transfer(Op op) {
  return op == Op::send_activation || op == Op::receive_activation || op == Op::send_gradient ||
         op == Op::receive_gradient;
}

double seconds(int64_t begin_ns, int64_t end_ns) {
  return 1e-9 * static_cast<double>(std::max<int64_t>(0, end_ns - begin_ns));
}

std::map<Key, double> instruction_seconds(const Trace& trace, const Plan& plan) {
  std::map<Key, std::vector<double>> recorded;
  std::map<std::pair<int64_t, Key>, double> joint;  // by step: the least of its ranks
  for (const RankRecord& rank : trace.ranks)
    for (const TraceEvent& event : rank.events) {
      if (event.name >= kOpCount) continue;
      const Key key{static_cast<Op>(event.name), event.chunk, event.micro};
      const double length = seconds(event.begin_ns, event.end_ns);
      if (is_joint(std::get<Op>(key))) {
        const auto at = joint.try_emplace({event.step, key}, length).first;
        at->second = std::min(at->second, length);
      } else if (!is_transfer(std::get<Op>(key))) {
        recorded[key].push_back(length);
      }
    }
  for (const auto& [at, length] : joint) recorded[at.second].push_back(length);
  for (const MatchedTransfer& transfer : match_transfers(trace, plan)) {
    const TraceEvent& send = *transfer.send;
    recorded[{static_cast<Op>(send.name), send.chunk, send.micro}].push_back(
        seconds(std::max(send.begin_ns, transfer.receive->begin_ns), transfer.receive->end_ns));
  }
  std::map<Key, double> result;
  for (const auto& [key, values] : recorded) result[key] = median(values);
  return result;
}

}  // namespace

MeasuredCosts measured_costs(const Trace& trace, const Plan& plan) {
  std::map<Key, double> each = instruction_seconds(trace, plan);
  const size_t chunks = plan.chunks.size();
  std::array<double, kOpCount> mean{};
  MeasuredCosts measured{.chunk_seconds = std::vector<double>(chunks)};
  for (const Op op :
       {Op::forward, Op::recompute, Op::backward, Op::backward_input, Op::backward_weight}) {
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      double sum = 0;
      int micros = 0;
      for (int micro = 0; micro < plan.train.shape.micros; ++micro) {
        const auto found = each.find({op, static_cast<int>(chunk), micro});
        if (found == each.end()) continue;
        sum += found->second;
        ++micros;
      }
      if (micros == 0) continue;
      measured.chunk_seconds[chunk] += sum / micros;
      mean[static_cast<size_t>(op)] += sum / micros / static_cast<double>(chunks);
    }
  }
  const auto mean_of = [&](Op op) { return mean[static_cast<size_t>(op)]; };
  Costs& costs = measured.costs;
  costs.forward = mean_of(Op::forward);
  // Whole backwards are input and weight gradients together; which is which does not matter then.
  costs.backward_input = mean_of(Op::backward) + mean_of(Op::backward_input);
  costs.backward_weight = mean_of(Op::backward_weight);
  costs.recompute = mean_of(Op::recompute);
  costs.of = [each = std::move(each)](const Instruction& i) {
    const auto found = each.find({i.op, i.chunk, i.micro});
    return found == each.end() ? 0 : found->second;  // it never ran: the trace was cut short
  };
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
