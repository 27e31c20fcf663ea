#include "homes.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "shape.hpp"

namespace voltapile {
namespace {

using Of = std::pair<int16_t, int16_t>;  // chunk, micro-batch
Of of(const Instruction& instruction) { return {instruction.chunk, instruction.micro}; }

// The first instruction that reads what forward saved.
bool begins_backward(const Program& program, size_t at) {
  const Op op = program[at].op;
  if (op == Op::recompute) return true;
  if (op != Op::backward && op != Op::backward_input) return false;
  for (size_t before = at; before-- > 0;)
    if (program[before].lane == Lane::compute) return program[before].op != Op::recompute;
  return true;
}

}  // namespace

Program with_weights_on_demand(const Program& program, const Homes& homes, bool gather_shards) {
  std::vector<size_t> runs;  // where each begins
  int at_work = -1;
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].lane != Lane::compute || program[i].chunk == at_work) continue;
    runs.push_back(i);
    at_work = program[i].chunk;
  }
  Program result;
  const auto bring = [&](size_t run) {
    if (run >= runs.size()) return;
    const int chunk = program[runs[run]].chunk;
    if (homes.weights == Home::nvme) result.push_back(closing(Op::load_weights, Lane::disk, chunk));
    result.push_back(closing(Op::fetch_weights, Lane::h2d, chunk));
    if (gather_shards) result.push_back(closing(Op::gather_weights, Lane::dp, chunk));
  };
  size_t next = 0;
  bring(next);
  for (size_t i = 0; i < program.size(); ++i) {
    if (next < runs.size() && i == runs[next]) bring(++next);
    result.push_back(program[i]);
  }
  return result;
}

Program with_stores(const Program& program, const Homes& homes) {
  const bool on_device = homes.activations == ActivationStore::int8;
  std::set<Of> kept;  // backward comes at once
  const Instruction* before = nullptr;
  for (const Instruction& instruction : program) {
    if (instruction.lane != Lane::compute) continue;
    if (before != nullptr && before->op == Op::forward && instruction.op != Op::forward &&
        of(*before) == of(instruction))
      kept.insert(of(instruction));
    before = &instruction;
  }
  std::vector<Instruction> fetches;
  for (size_t i = 0; i < program.size(); ++i)
    if (begins_backward(program, i) && !kept.contains(of(program[i])))
      fetches.push_back({Op::fetch_activation, on_device ? Lane::compute : Lane::h2d,
                         program[i].chunk, program[i].micro});
  Program result;
  std::set<Of> stored;
  auto fetch = fetches.begin();
  // What is not stored yet cannot come back ahead of its time.
  const auto fetch_ahead = [&] {
    if (fetch == fetches.end() || !stored.contains(of(*fetch))) return;
    result.push_back(*fetch++);
  };
  for (size_t i = 0; i < program.size(); ++i) {
    const Instruction& instruction = program[i];
    if (begins_backward(program, i) && !kept.contains(of(instruction))) {
      if (fetch != fetches.end() && of(*fetch) == of(instruction)) result.push_back(*fetch++);
      if (!on_device) fetch_ahead();
    }
    result.push_back(instruction);
    if (instruction.op != Op::forward || kept.contains(of(instruction))) continue;
    result.push_back({Op::store_activation, on_device ? Lane::compute : Lane::d2h,
                      instruction.chunk, instruction.micro});
    stored.insert(of(instruction));
  }
  return result;
}

}  // namespace voltapile
