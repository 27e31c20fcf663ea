#include "voltapile/schedule/instruction.hpp"

#include <utility>

#include "voltapile/base/error.hpp"

namespace voltapile {

std::string_view name_of(Op op) {
  switch (op) {
    case Op::load_batch: return "load_batch";
    case Op::forward: return "forward";
    case Op::recompute: return "recompute";
    case Op::backward: return "backward";
    case Op::backward_input: return "backward_input";
    case Op::backward_weight: return "backward_weight";
    case Op::send_activation: return "send_activation";
    case Op::receive_activation: return "receive_activation";
    case Op::send_gradient: return "send_gradient";
    case Op::receive_gradient: return "receive_gradient";
    case Op::store_activation: return "store_activation";
    case Op::fetch_activation: return "fetch_activation";
    case Op::load_weights: return "load_weights";
    case Op::save_weights: return "save_weights";
    case Op::fetch_weights: return "fetch_weights";
    case Op::gather_weights: return "gather_weights";
    case Op::reduce_gradients: return "reduce_gradients";
    case Op::offload_gradients: return "offload_gradients";
    case Op::norm: return "norm";
    case Op::load_state: return "load_state";
    case Op::update: return "update";
    case Op::save_state: return "save_state";
    case Op::snapshot: return "snapshot";
  }
  return "?";
}

std::string_view name_of(Lane lane) {
  switch (lane) {
    case Lane::compute: return "compute";
    case Lane::pipe_in: return "pipe_in";
    case Lane::pipe_out: return "pipe_out";
    case Lane::dp: return "dp";
    case Lane::input: return "input";
    case Lane::h2d: return "h2d";
    case Lane::d2h: return "d2h";
    case Lane::host: return "host";
    case Lane::disk: return "disk";
  }
  return "?";
}

std::string_view name_of(Value value) {
  switch (value) {
    case Value::pictures: return "pictures";
    case Value::labels: return "labels";
    case Value::activation: return "activation";
    case Value::gradient: return "gradient";
    case Value::saved: return "saved";
    case Value::stored: return "stored";
    case Value::deferred: return "deferred";
    case Value::weights: return "weights";
    case Value::host_weights: return "host_weights";
    case Value::gradients: return "gradients";
    case Value::reduced: return "reduced";
    case Value::host_gradients: return "host_gradients";
    case Value::state: return "state";
    case Value::norm_sums: return "norm_sums";
    case Value::step_state: return "step_state";
    case Value::multiplier: return "multiplier";
    case Value::workspace: return "workspace";
    case Value::loss: return "loss";
  }
  return "?";
}

ChunkTable cyclic_chunks(int ranks, int chunks_per_rank) {
  VP_CHECK(ranks >= 1 && chunks_per_rank >= 1, "{} ranks with {} chunks each", ranks,
           chunks_per_rank);
  ChunkTable table{ranks, {}};
  for (int chunk = 0; chunk < ranks * chunks_per_rank; ++chunk)
    table.rank_of.push_back(chunk % ranks);
  return table;
}

bool is_persistent(Value value, const Homes& homes) {
  switch (value) {
    case Value::weights: return homes.weights == Home::device;
    case Value::host_weights: return homes.weights == Home::host;
    case Value::state: return homes.optimizer != Home::nvme;
    case Value::norm_sums:
    case Value::step_state:
    case Value::multiplier:
    case Value::workspace:
    case Value::loss: return true;
    default: return false;
  }
}

namespace {

class OperandList {
 public:
  void read(Value value, int chunk = -1, int micro = -1) { add(value, chunk, micro, Access::read); }
  void write(Value value, int chunk = -1, int micro = -1) {
    add(value, chunk, micro, Access::write);
  }
  void update(Value value, int chunk = -1, int micro = -1) {
    add(value, chunk, micro, Access::update);
  }
  // What the chunk computes from: its boundary activation, or the pictures.
  void read_input(int chunk, int micro, bool keep) {
    if (chunk == 0) read(Value::pictures, -1, micro);
    else if (keep) read(Value::activation, chunk, micro);
  }
  std::vector<Operand> take() { return std::move(list_); }

 private:
  void add(Value value, int chunk, int micro, Access access) {
    list_.push_back({value, static_cast<int16_t>(chunk), static_cast<int16_t>(micro), access});
  }
  std::vector<Operand> list_;
};

}  // namespace

std::vector<Operand> operands(const Instruction& instruction, const ChunkTable& chunks,
                              const OperandRules& rules) {
  const int chunk = instruction.chunk, micro = instruction.micro;
  const bool first = chunk == 0, last = chunk == chunks.last();
  OperandList list;
  switch (instruction.op) {
    case Op::load_batch:
      if (first) list.write(Value::pictures, -1, micro);
      if (last) list.write(Value::labels, -1, micro);
      break;
    case Op::forward:
      list.read(Value::weights, chunk);
      list.read(Value::step_state);
      list.read_input(chunk, micro, true);
      if (last) list.read(Value::labels, -1, micro);
      if (rules.training) list.write(Value::saved, chunk, micro);
      if (!last) list.write(Value::activation, chunk + 1, micro);
      if (last) list.update(Value::loss);
      list.update(Value::workspace);
      break;
    case Op::recompute:
      list.read(Value::weights, chunk);
      list.read(Value::step_state);
      list.read_input(chunk, micro, rules.keep_input);
      list.read(Value::saved, chunk, micro);
      if (last) list.read(Value::labels, -1, micro);
      list.update(Value::workspace);
      break;
    case Op::backward:
    case Op::backward_input:
      list.read(Value::weights, chunk);
      list.read(Value::step_state);
      list.read_input(chunk, micro, rules.keep_input);
      list.read(Value::saved, chunk, micro);
      if (last) list.read(Value::labels, -1, micro);
      else list.read(Value::gradient, chunk + 1, micro);
      if (!first) list.write(Value::gradient, chunk, micro);
      // A split backward too: gradients of norms, biases and embeddings are not put off.
      list.update(Value::gradients, chunk);
      if (instruction.op == Op::backward_input) list.write(Value::deferred, chunk, micro);
      list.update(Value::workspace);
      break;
    case Op::backward_weight:
      list.read(Value::step_state);
      list.read_input(chunk, micro, rules.keep_input);
      list.read(Value::saved, chunk, micro);
      list.read(Value::deferred, chunk, micro);
      list.update(Value::gradients, chunk);
      list.update(Value::workspace);
      break;
    case Op::send_activation: list.read(Value::activation, chunk, micro); break;
    case Op::receive_activation: list.write(Value::activation, chunk, micro); break;
    case Op::send_gradient: list.read(Value::gradient, chunk, micro); break;
    case Op::receive_gradient: list.write(Value::gradient, chunk, micro); break;
    case Op::store_activation:
      list.read(Value::saved, chunk, micro);
      if (!first && rules.keep_input) list.read(Value::activation, chunk, micro);
      list.write(Value::stored, chunk, micro);
      break;
    case Op::fetch_activation:
      list.read(Value::stored, chunk, micro);
      list.write(Value::saved, chunk, micro);
      if (!first && rules.keep_input) list.write(Value::activation, chunk, micro);
      break;
    case Op::load_weights: list.write(Value::host_weights, chunk); break;
    case Op::save_weights: list.read(Value::host_weights, chunk); break;
    case Op::fetch_weights:
      list.read(Value::host_weights, chunk);
      // With weights at home here, the rest of the chunk stays; else they begin with this shard.
      if (rules.homes.weights == Home::device) list.update(Value::weights, chunk);
      else list.write(Value::weights, chunk);
      break;
    case Op::gather_weights: list.update(Value::weights, chunk); break;
    case Op::reduce_gradients:
      list.update(Value::gradients, chunk);
      list.write(Value::reduced, chunk);
      list.update(Value::norm_sums);
      break;
    case Op::offload_gradients:
      list.read(Value::reduced, chunk);
      list.write(Value::host_gradients, chunk);
      break;
    case Op::norm:
      list.update(Value::norm_sums);
      list.update(Value::loss);
      // What forward reads of the state is then the same in every step.
      list.update(rules.early_updates ? Value::multiplier : Value::step_state);
      break;
    case Op::load_state: list.write(Value::state, chunk); break;
    case Op::save_state: list.read(Value::state, chunk); break;
    case Op::update:
      list.read(rules.early_updates ? Value::multiplier : Value::step_state);
      list.update(Value::state, chunk);
      if (rules.homes.optimizer == Home::device) {
        list.read(Value::reduced, chunk);
        list.update(Value::weights, chunk);
      } else {
        list.read(Value::host_gradients, chunk);
        list.write(Value::host_weights, chunk);
      }
      break;
    case Op::snapshot: list.read(Value::state, chunk); break;
  }
  return list.take();
}

}  // namespace voltapile
