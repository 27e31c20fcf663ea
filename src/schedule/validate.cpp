#include <map>
#include <set>
#include <tuple>

#include "voltapile/base/error.hpp"
#include "voltapile/schedule/schedule.hpp"

#include "events.hpp"
#include "shape.hpp"

namespace voltapile {

namespace {

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw Error(ExitCode::failure, format("{}: {}", where, what));
}

bool lane_fits(Op op, Lane lane) {
  switch (op) {
    case Op::load_batch: return lane == Lane::input;
    case Op::fetch_weights: return lane == Lane::h2d;
    case Op::fetch_activation: return lane == Lane::h2d || lane == Lane::compute;
    case Op::store_activation: return lane == Lane::d2h || lane == Lane::compute;
    case Op::load_weights:
    case Op::save_weights:
    case Op::load_state:
    case Op::save_state: return lane == Lane::disk;
    case Op::offload_gradients: return lane == Lane::d2h;
    case Op::forward:
    case Op::recompute:
    case Op::backward:
    case Op::backward_input:
    case Op::backward_weight: return lane == Lane::compute;
    case Op::send_activation:
    case Op::send_gradient: return lane == Lane::pipe_out;
    case Op::receive_activation:
    case Op::receive_gradient: return lane == Lane::pipe_in;
    case Op::reduce_gradients:
    case Op::norm: return lane == Lane::dp;
    case Op::gather_weights: return lane == Lane::dp;
    case Op::update: return lane == Lane::compute || lane == Lane::host || lane == Lane::dp;
    case Op::snapshot: return lane == Lane::host || lane == Lane::d2h;
  }
  return false;
}

// What may come several times a step where weights are not at home on the device.
bool is_of_weights(Op op) {
  return op == Op::load_weights || op == Op::save_weights || op == Op::fetch_weights ||
         op == Op::gather_weights;
}

// Whether an instruction of this chunk and micro-batch can belong to the rank at all.
bool belongs(const Instruction& i, int rank, const ScheduleShape& shape) {
  if (i.op == Op::norm) return i.chunk == -1 && i.micro == -1;
  const bool of_chunk_only = is_of_weights(i.op) || i.op == Op::reduce_gradients ||
                             i.op == Op::offload_gradients || i.op == Op::load_state ||
                             i.op == Op::update || i.op == Op::save_state || i.op == Op::snapshot;
  if (i.chunk < 0 || i.chunk >= shape.chunks.chunks()) return false;
  if (of_chunk_only ? i.micro != -1 : i.micro < 0 || i.micro >= shape.micros) return false;
  if (i.op == Op::load_batch && i.chunk != 0 && i.chunk != shape.chunks.last()) return false;
  if (!is_send(i.op) && !is_receive(i.op)) return rank_of(shape.chunks, i.chunk) == rank;
  if (i.chunk == 0) return false;
  const int before = rank_of(shape.chunks, i.chunk - 1), after = rank_of(shape.chunks, i.chunk);
  const bool at_before = i.op == Op::send_activation || i.op == Op::receive_gradient;
  return before != after && rank == (at_before ? before : after);
}

using Key = std::tuple<Op, int16_t, int16_t>;

class Completeness {
 public:
  Completeness(const std::vector<Program>& programs, const ScheduleShape& shape)
      : shape_(shape), held_(programs.size()) {
    for (int rank = 0; rank < static_cast<int>(programs.size()); ++rank) {
      const Program& program = programs[static_cast<size_t>(rank)];
      for (int position = 0; position < static_cast<int>(program.size()); ++position) {
        const Instruction& i = program[static_cast<size_t>(position)];
        const auto place = [&] { return show(programs, {rank, position}); };
        if (!belongs(i, rank, shape)) fail(place(), "does not belong to this rank or shape");
        if (!lane_fits(i.op, i.lane)) fail(place(), format("cannot run on {}", name_of(i.lane)));
        const auto [first, is_new] =
            held_[static_cast<size_t>(rank)].try_emplace({i.op, i.chunk, i.micro}, position);
        const bool comes_again =
            shape.homes.weights != Home::device && is_of_weights(i.op) && i.op != Op::save_weights;
        if (!is_new && !comes_again)
          fail(place(), format("was issued at position {} already", first->second));
      }
    }
  }

  void check(bool training) const {
    const int last = shape_.chunks.last();
    for (int rank = 0; training && rank < shape_.chunks.ranks; ++rank) need(rank, Op::norm, -1, -1);
    for (int chunk = 0; chunk <= last; ++chunk) {
      const int rank = rank_of(shape_.chunks, chunk);
      if (training) {
        need(rank, Op::reduce_gradients, chunk, -1);
        need(rank, Op::update, chunk, -1);
        if (shape_.homes.optimizer == Home::nvme) need(rank, Op::save_state, chunk, -1);
        if (shape_.homes.weights == Home::nvme) need(rank, Op::save_weights, chunk, -1);
        if (shape_.homes.optimizer != Home::device) need(rank, Op::fetch_weights, chunk, -1);
      }
      for (int micro = 0; micro < shape_.micros; ++micro) {
        if (chunk == 0 || chunk == last) need(rank, Op::load_batch, chunk, micro);
        need(rank, Op::forward, chunk, micro);
        if (training) need_backward(rank, chunk, micro);
        if (chunk > 0)
          need_transfers(rank_of(shape_.chunks, chunk - 1), rank, chunk, micro, training);
      }
    }
  }

 private:
  bool has(int rank, Op op, int chunk, int micro) const {
    return held_[static_cast<size_t>(rank)].contains(
        {op, static_cast<int16_t>(chunk), static_cast<int16_t>(micro)});
  }
  void need(int rank, Op op, int chunk, int micro) const {
    if (has(rank, op, chunk, micro)) return;
    fail(
        format("rank {}, position {} (the end)", rank, held_[static_cast<size_t>(rank)].size()),
        format("{} was not issued", show(Instruction{op, Lane::compute, static_cast<int16_t>(chunk),
                                                     static_cast<int16_t>(micro)})));
  }
  void need_backward(int rank, int chunk, int micro) const {
    const bool split =
        has(rank, Op::backward_input, chunk, micro) || has(rank, Op::backward_weight, chunk, micro);
    if (split && has(rank, Op::backward, chunk, micro))
      fail(format("rank {}", rank),
           format("chunk {}, micro {} goes back whole and split", chunk, micro));
    if (!split) return need(rank, Op::backward, chunk, micro);
    need(rank, Op::backward_input, chunk, micro);
    need(rank, Op::backward_weight, chunk, micro);
  }
  void need_transfers(int before, int after, int chunk, int micro, bool training) const {
    if (before == after) return;
    need(before, Op::send_activation, chunk, micro);
    need(after, Op::receive_activation, chunk, micro);
    if (!training) return;
    need(after, Op::send_gradient, chunk, micro);
    need(before, Op::receive_gradient, chunk, micro);
  }

  const ScheduleShape& shape_;
  std::vector<std::map<Key, int>> held_;  // by rank: where each instruction is
};

// Every value is written before it is read, and what no operand says of the order.
void check_operands(const std::vector<Program>& programs, int rank, const ScheduleShape& shape,
                    const OperandRules& rules) {
  std::set<std::tuple<Value, int16_t, int16_t>> written;
  std::set<int16_t> reduced, updated;
  bool normed = false;
  const Instruction* rebuilt = nullptr;  // by the last recompute, for the next compute instruction
  const Program& program = programs[static_cast<size_t>(rank)];
  for (int position = 0; position < static_cast<int>(program.size()); ++position) {
    const Instruction& i = program[static_cast<size_t>(position)];
    const auto fault = [&](const std::string& what) {
      fail(show(programs, {rank, position}), what);
    };
    if (is_backward(i.op) && reduced.contains(i.chunk))
      fault("comes after reduce_gradients of its chunk");
    for (const Operand& o : operands(i, shape.chunks, rules)) {
      const bool starts = o.access == Access::write || is_persistent(o.value, rules.homes) ||
                          (o.value == Value::gradients && is_backward(i.op));
      if (!starts && !written.contains({o.value, o.chunk, o.micro}))
        fault(format("reads {} (chunk {}, micro {}), which is not written before", name_of(o.value),
                     o.chunk, o.micro));
      if (o.access != Access::read) written.insert({o.value, o.chunk, o.micro});
    }
    if (i.op == Op::reduce_gradients) reduced.insert(i.chunk);
    if (i.op == Op::norm) normed = true;
    if (i.op == Op::update && normed == shape.early_updates)
      fault(normed ? "comes after norm, which changes what it reads" : "comes before norm");
    if (i.op == Op::update) updated.insert(i.chunk);
    const bool brings_back = i.op == Op::gather_weights || i.op == Op::fetch_weights;
    const bool at_end = shape.early_updates ? shape.homes.weights == Home::device : normed;
    if (brings_back && rules.training && at_end && !updated.contains(i.chunk))
      fault("comes before update of its chunk");
    if (i.lane != Lane::compute) continue;
    if (rebuilt && !((i.op == Op::backward || i.op == Op::backward_input) &&
                     i.chunk == rebuilt->chunk && i.micro == rebuilt->micro))
      fault(format("stands between {} and its backward", show(*rebuilt)));
    rebuilt = i.op == Op::recompute ? &i : nullptr;
  }
  if (rebuilt) fail(format("rank {}", rank), format("{} has no backward", show(*rebuilt)));
}

// One order of all events must exist in which every rank's program is a subsequence. Lanes and
// buffers only ever wait for what comes earlier in a program, so then nothing waits in a circle.
void check_global_order(const std::vector<Program>& programs, const Events& events) {
  std::vector<size_t> next(programs.size());  // first instruction of each rank not yet ordered
  const auto place = [&](size_t rank) {
    return ProgramPlace{static_cast<int>(rank), static_cast<int>(next[rank])};
  };
  // The first member of the rank's next event whose rank has not come to it; -1: none.
  const auto waits_for = [&](size_t rank) {
    for (const ProgramPlace& member :
         events.list[static_cast<size_t>(events.of[rank][next[rank]])].members)
      if (next[static_cast<size_t>(member.rank)] != static_cast<size_t>(member.position))
        return member.rank;
    return -1;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < programs.size(); ++rank)
      while (next[rank] < programs[rank].size() && waits_for(rank) == -1) {
        for (const ProgramPlace& member :
             events.list[static_cast<size_t>(events.of[rank][next[rank]])].members)
          ++next[static_cast<size_t>(member.rank)];
        moved = true;
      }
  }
  for (size_t start = 0; start < programs.size(); ++start) {
    if (next[start] == programs[start].size()) continue;
    // Every rank from here on waits for another one that waits: walk until one comes again.
    std::vector<size_t> walk{start};
    std::set<size_t> seen;
    while (seen.insert(walk.back()).second)
      walk.push_back(static_cast<size_t>(waits_for(walk.back())));
    std::string circle;
    bool inside = false;
    for (size_t k = 0; k + 1 < walk.size(); ++k) {
      inside |= walk[k] == walk.back();
      if (inside)
        circle += format("\n  {} waits for rank {}", show(programs, place(walk[k])), walk[k + 1]);
    }
    throw Error(ExitCode::failure, "a circular wait:" + circle);
  }
}

}  // namespace

void validate(const std::vector<Program>& programs, const ScheduleShape& shape) {
  check_shape(shape);
  if (static_cast<int>(programs.size()) != shape.chunks.ranks)
    throw Error(ExitCode::failure,
                format("{} programs for {} ranks", programs.size(), shape.chunks.ranks));
  const bool training = is_training(programs);
  Completeness(programs, shape).check(training);
  for (int rank = 0; rank < shape.chunks.ranks; ++rank)
    check_operands(programs, rank, shape, shape.rules(training));
  check_global_order(programs, match_events(programs, shape));
}

}  // namespace voltapile
