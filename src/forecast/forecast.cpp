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

std::string_view key_value(Home home) {
  return home == Home::device ? "device" : home == Home::host ? "host" : "nvme";
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
  }
  const double forward = sum.flops.forward, all = sum.model() + sum.recompute;
  Costs costs;
  costs.forward = 1;
  costs.backward_input = sum.flops.backward_input / forward;
  costs.backward_weight = sum.flops.backward_weight / forward;
  costs.recompute = sum.recompute / forward;
  for (const ChunkFlops& chunk : chunks)
    costs.chunk_weight.push_back((chunk.model() + chunk.recompute) *
                                 static_cast<double>(chunks.size()) / all);
  return costs;
}

Forecast forecast(const Plan& plan) {
  Forecast f;
  f.parameters = static_cast<double>(plan.architecture.parameter_count());
  const double micros = static_cast<double>(plan.deck.batch.global) /
                        static_cast<double>(plan.deck.batch.micro);  // of all data ranks
  for (const Chunk& chunk : plan.chunks) {
    const ChunkFlops c = flops_of(plan, chunk);
    f.model_flops_per_step += micros * c.model();
    f.hardware_flops_per_step += micros * (c.model() + c.recompute);
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
  const auto refuse = [&](std::string_view key, std::string_view value, std::string_view why,
                          std::string_view fix) {
    messages.push_back(format("{}{}{} = \"{}\": {}; {}", deck.path, deck.path.empty() ? "" : ": ",
                              key, value, why, fix));
  };
  const std::string_view later = "this version plans it but cannot train it yet";
  if (deck.run.device == DeviceKind::cuda && !cuda_is_built())
    refuse("run.device", "cuda", "this program was built without CUDA", "set \"cpu\"");
  if (deck.memory.optimizer != Home::device)
    refuse("memory.optimizer", key_value(deck.memory.optimizer), later, "set \"device\"");
  if (deck.memory.weights != Home::device)
    refuse("memory.weights", key_value(deck.memory.weights), later, "set \"device\"");
  if (deck.memory.activations != ActivationStore::working)
    refuse("memory.activations", deck.memory.activations == ActivationStore::int8 ? "int8" : "host",
           later, "set \"working\"");
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
