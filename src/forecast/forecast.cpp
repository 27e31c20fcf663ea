#include "voltapile/forecast/forecast.hpp"

#include <algorithm>

#include "voltapile/device/device.hpp"
#include "voltapile/plan/costs.hpp"

namespace voltapile {
namespace {

double activation_bytes(const Plan& plan) {
  size_t most = 0;
  for (int rank = 0; rank < plan.mesh.pp; ++rank) {
    const BufferPlan& buffers = plan.train.buffers[static_cast<size_t>(rank)];
    size_t bytes = buffers.bytes(Value::saved) + buffers.bytes(Value::activation);
    size_t rebuilt = 0;
    for (const Chunk& chunk : plan.chunks) {
      if (chunk.rank != rank || chunk.segment_layers == 0) continue;
      for (const Segment& segment : segments(plan.architecture, layers_of(chunk)))
        rebuilt =
            std::max(rebuilt, segment_saved(plan.architecture, segment, plan.train.sizes).bytes);
    }
    most = std::max(most, bytes + rebuilt);
  }
  return static_cast<double>(most);
}

// Training alone, since nothing else is asked of it.
double activation_bytes_without_recompute(const Plan& plan) {
  if (plan.deck.memory.recompute == Recompute::none) return activation_bytes(plan);
  Deck deck = plan.deck;
  deck.memory.recompute = Recompute::none;
  return activation_bytes(make_plan(deck));
}

}  // namespace

Costs costs_by_flops(const Plan& plan) {
  std::vector<ChunkFlops> chunks;
  ChunkFlops sum;
  for (const Chunk& chunk : plan.chunks) {
    chunks.push_back(flops_of(plan, chunk));
    sum.flops.forward += chunks.back().flops.forward;
    sum.flops.backward_input += chunks.back().flops.backward_input;
    sum.flops.backward_weight += chunks.back().flops.backward_weight;
    sum.recompute += chunks.back().recompute;
    sum.rebuilt += chunks.back().rebuilt;
  }
  const double forward = sum.flops.forward, all = sum.hardware();
  Costs costs;
  costs.forward = 1;
  costs.backward_input = (sum.flops.backward_input + sum.rebuilt) / forward;
  costs.backward_weight = sum.flops.backward_weight / forward;
  costs.recompute = sum.recompute / forward;
  for (const ChunkFlops& chunk : chunks)
    costs.chunk_weight.push_back(chunk.hardware() * static_cast<double>(chunks.size()) / all);
  return costs;
}

double step_seconds(const Plan& plan, const Hardware& hardware) {
  double forward_flops = 0, weights = 0, state = 0, reduced = 0, stored = 0;
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    const int chunk = static_cast<int>(c);
    forward_flops += flops_of(plan, plan.chunks[c]).flops.forward;
    weights += static_cast<double>(value_bytes(plan, plan.train, Value::weights, chunk));
    state += static_cast<double>(value_bytes(plan, plan.train, Value::state, chunk));
    reduced += static_cast<double>(plan.shard_elements(chunk)) *
               static_cast<double>(bytes_of(plan.gradient_store));
    stored += static_cast<double>(value_bytes(plan, plan.train, Value::stored, chunk));
  }
  const auto count = static_cast<double>(plan.chunks.size());
  const Homes homes = plan.deck.memory.homes();
  const double boundary = static_cast<double>(
      value_bytes(plan, plan.train, Value::activation, plan.train.shape.chunks.last()));
  const double dp = plan.mesh.dp;
  Costs costs = costs_by_flops(plan);
  const double unit = forward_flops / count / plan.mesh.tp / hardware.product_flops_per_second;
  costs.forward *= unit;
  costs.backward_input *= unit;
  costs.backward_weight *= unit;
  costs.recompute *= unit;
  costs.transfer = boundary / hardware.link_bytes_per_second;
  costs.reduce = 2 * weights / count * (dp - 1) / dp / hardware.link_bytes_per_second;
  costs.gather = weights / count * (dp - 1) / dp / hardware.link_bytes_per_second;
  // Master weights and moments are read and written, gradients read, weights written.
  const double updated = (2 * state + reduced + weights / dp) / count;
  costs.update = updated / (homes.optimizer == Home::device ? hardware.copy_bytes_per_second
                                                            : hardware.host_bytes_per_second);
  costs.offload = reduced / count / hardware.device_to_host_bytes_per_second;
  costs.disk = state / count / hardware.disk_bytes_per_second;
  costs.store =
      stored / count /
      (homes.activations == ActivationStore::host
           ? hardware.device_to_host_bytes_per_second
           : hardware.copy_bytes_per_second / 3);  // read once as numbers, written as codes
  return steady_state(plan.train.programs, plan.train.shape, costs).step_seconds;
}

Forecast forecast(const Plan& plan) {
  Forecast f;
  f.parameters = static_cast<double>(plan.architecture.parameter_count());
  const double micros = static_cast<double>(plan.deck.batch.global) /
                        static_cast<double>(plan.deck.batch.micro);  // of all data ranks
  for (const Chunk& chunk : plan.chunks) {
    const ChunkFlops c = flops_of(plan, chunk);
    f.model_flops_per_step += micros * c.model();
    f.hardware_flops_per_step += micros * c.hardware();
  }
  const Costs costs = costs_by_flops(plan);
  const Timeline timeline = simulate(plan.train.programs, plan.train.shape, costs);
  f.bubble = bubble(timeline, plan.mesh.pp, 0).fraction;
  f.bubble_formula =
      bubble_formula(plan.deck.parallel.schedule, plan.train.shape, costs).value_or(-1);
  f.activation_bytes = activation_bytes(plan);
  f.activation_bytes_without_recompute = activation_bytes_without_recompute(plan);
  return f;
}

std::vector<std::string> not_trainable(const Plan& plan) {
  const Deck& deck = plan.deck;
  std::vector<std::string> messages;
  const auto refuse = [&](const std::string& key, std::string_view value, std::string_view why,
                          std::string_view fix) {
    const std::string place = deck.path.empty() ? "" : deck.place(key) + ": ";
    messages.push_back(format("{}{} = \"{}\": {}; {}", place, key, value, why, fix));
  };
  if (deck.run.device == DeviceKind::cuda && !cuda_is_built())
    refuse("run.device", "cuda", "this program was built without CUDA", "set \"cpu\"");
  const DataFormat format_ = deck.data.format;
  if (format_ == DataFormat::folder || format_ == DataFormat::tar || format_ == DataFormat::hdf5)
    refuse("data.format",
           format_ == DataFormat::folder ? "folder"
           : format_ == DataFormat::tar  ? "tar"
                                         : "hdf5",
           "this version cannot read it yet", "use \"idx\" or \"synthetic\"");
  return messages;
}

}  // namespace voltapile
