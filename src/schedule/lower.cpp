#include "voltapile/base/error.hpp"
#include "voltapile/schedule/schedule.hpp"

#include "global_order.hpp"
#include "homes.hpp"
#include "shape.hpp"
#include "step_end.hpp"

namespace voltapile {

namespace {

Program with_recompute(const Program& program) {
  Program result;
  for (const Instruction& instruction : program) {
    if (instruction.op == Op::backward || instruction.op == Op::backward_input)
      result.push_back(compute_instruction(Op::recompute, instruction.chunk, instruction.micro));
    result.push_back(instruction);
  }
  return result;
}

// Batches come one ahead: the one that a forward needs was asked for before the forward before it.
Program with_loads(const Program& program, int chunk) {
  std::vector<Instruction> loads;
  for (const Instruction& instruction : program)
    if (instruction.op == Op::forward && instruction.chunk == chunk)
      loads.push_back({Op::load_batch, Lane::input, instruction.chunk, instruction.micro});
  Program result;
  auto load = loads.begin();
  if (load != loads.end()) result.push_back(*load++);
  for (const Instruction& instruction : program) {
    if (instruction.op == Op::forward && instruction.chunk == chunk && load != loads.end())
      result.push_back(*load++);
    result.push_back(instruction);
  }
  return result;
}

void check_compute_only(const std::vector<Program>& compute, const ScheduleShape& shape) {
  VP_CHECK(static_cast<int>(compute.size()) == shape.chunks.ranks, "{} programs for {} ranks",
           compute.size(), shape.chunks.ranks);
  for (size_t rank = 0; rank < compute.size(); ++rank)
    for (const Instruction& i : compute[rank]) {
      VP_CHECK(i.op == Op::forward || is_backward(i.op), "{} is not a compute instruction",
               show(i));
      VP_CHECK(i.chunk >= 0 && i.chunk < shape.chunks.chunks() && i.micro >= 0 &&
                   i.micro < shape.micros &&
                   rank_of(shape.chunks, i.chunk) == static_cast<int>(rank),
               "{} does not belong to rank {}", show(i), rank);
    }
}

}  // namespace

std::vector<Program> lower(const std::vector<Program>& compute, const ScheduleShape& shape,
                           const LowerOptions& options) {
  check_shape(shape);
  check_compute_only(compute, shape);
  std::vector<Program> programs(compute.size());
  for (const Placed& placed : global_order(compute, shape, options.recompute))
    programs[static_cast<size_t>(placed.rank)].push_back(placed.instruction);
  // What follows concerns one rank alone, or comes after all that it exchanges with others, so the
  // global order goes on to exist.
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    Program& program = programs[rank];
    const int self = static_cast<int>(rank), last = shape.chunks.last();
    if (options.recompute) program = with_recompute(program);
    if (rank_of(shape.chunks, 0) == self) program = with_loads(program, 0);
    if (last != 0 && rank_of(shape.chunks, last) == self) program = with_loads(program, last);
    if (shape.homes.weights != Home::device)
      program = with_weights_on_demand(program, shape.homes, options.gather_shards);
    if (!options.training) continue;
    if (shape.homes.activations != ActivationStore::working)
      program = with_stores(program, shape.homes);
    program = with_step_end(program, shape, options);
  }
  return programs;
}

}  // namespace voltapile
