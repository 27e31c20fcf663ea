#include "advice.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "voltapile/base/units.hpp"

namespace voltapile {
namespace {

using Found = std::optional<Advice>;

// Below these a change is not worth a person's time.
constexpr double kBubble = 0.10, kExposed = 0.10, kLoader = 0.05, kOptimizer = 0.15,
                 kRecompute = 0.05, kStraggler = 1.15;
// The host issues all the time: the device waits for instructions.
constexpr double kLaunch = 0.70;
// A weight that a product reads serves this many rows at least, or reading weights bounds it: about
// the FLOP a byte at which the matrix units of GPUs since Volta keep up with their memory.
constexpr int64_t kEnoughRows = 256;
// Of a GPU on which kernels run all the time, the share of SMs that have work: below, kernels are
// too small for it.
constexpr double kGpuBusy = 0.8, kSmActivity = 0.6;
// Rows of a tile of the matrix units' products.
constexpr int64_t kTile = 64;
// 2^-6: six halvings in a few hundred steps are not the search for a scale any more.
constexpr double kCollapse = 1.0 / 64;

std::string percent(double share) { return format("{:.1f} %", 100 * share); }

// (p - 1) / (v m + p - 1)
double bubble_of(int pipeline, int64_t chunks, int64_t micros) {
  const double p = pipeline - 1;
  return p / (static_cast<double>(chunks * micros) + p);
}

Found bubble(const Facts& f) {
  if (!f.traced || f.pipeline == 1 || f.bubble < kBubble) return {};
  Advice advice{.rule = "bubble", .title = "The pipeline bubble is large"};
  advice.evidence =
      format("ranks compute nothing for {} of a step, {} ranks in a row, {} x {} chunks",
             percent(f.bubble), f.pipeline, f.pipeline, f.chunks);
  const double now = bubble_of(f.pipeline, f.chunks, f.micros);
  double then = now;
  if (f.most_chunks > f.chunks) {
    advice.key = "parallel.chunks";
    const int64_t chunks = f.most_chunks;
    then = bubble_of(f.pipeline, chunks, f.micros);
    advice.change = format(
        "{} (with parallel.schedule = \"breadth_first\"): the formula's bubble "
        "falls from {} to {}",
        chunks, percent(now), percent(then));
  } else if (f.micro > 1) {
    advice.key = "batch.micro";
    then = bubble_of(f.pipeline, f.chunks, 2 * f.micros);
    advice.change = format(
        "{}: twice as many micro-batches; the formula's bubble falls from {} to "
        "{}",
        f.micro / 2, percent(now), percent(then));
  } else {
    advice.key = "batch.global";
    then = bubble_of(f.pipeline, f.chunks, 2 * f.micros);
    advice.change = format(
        "{}: twice as many micro-batches; the formula's bubble falls from {} to "
        "{}",
        2 * f.global, percent(now), percent(then));
  }
  advice.gain = std::clamp(now - then, 0.0, f.bubble);
  return advice;
}

Found tensor_across_nodes(const Facts& f) {
  if (f.split_tensor_groups.empty()) return {};
  return Advice{
      .rule = "tensor across nodes",
      .title = "A tensor-parallel group spans machines",
      .evidence = format("{}{}", f.split_tensor_groups.front(),
                         f.split_tensor_groups.size() > 1
                             ? format(" and {} more groups", f.split_tensor_groups.size() - 1)
                             : std::string()),
      .key = "parallel.tensor",
      .change =
          "the number of GPUs of one machine at most (the rest to parallel.pipeline); "
          "each block has four collectives in its critical path"};
}

Found exposed_reduction(const Facts& f) {
  if (!f.traced || f.data == 1 || f.exposed_reduction < kExposed) return {};
  Advice advice{.rule = "exposed all-reduce",
                .title = "Gradients travel while nothing is computed",
                .evidence = format("{} of a step goes to reductions over {} data ranks that no "
                                   "computation hides",
                                   percent(f.exposed_reduction), f.data),
                .gain = f.exposed_reduction / 2};
  if (f.gradients_reduced_in_f32) {
    advice.key = "memory.gradients";
    advice.change = "\"working\": half the bytes";
  } else {
    advice.key = "batch.global";
    advice.change = format("{}: twice the work for each reduction", 2 * f.global);
  }
  return advice;
}

Found loader(const Facts& f) {
  if (!f.traced || f.data_wait < kLoader) return {};
  return Advice{
      .rule = "loader",
      .title = "Steps wait for data",
      .evidence = format("{} of a step is spent waiting for the loader, which reads with {} "
                         "thread{}",
                         percent(f.data_wait), f.workers, f.workers == 1 ? "" : "s"),
      .key = "data.workers",
      .change = format("{}", 2 * f.workers),
      .gain = f.data_wait};
}

Found optimizer(const Facts& f) {
  if (!f.traced || f.optimizer < kOptimizer) return {};
  Advice advice{.rule = "optimizer",
                .title = "The optimizer holds up the step",
                .evidence = format("{} of a step goes to updates while no layer is computed",
                                   percent(f.optimizer))};
  if (f.data > 1 && f.zero == 0) {
    advice.key = "optimizer.zero";
    advice.change = format("1: each of {} data ranks updates its share", f.data);
    advice.gain = f.optimizer * (1 - 1.0 / f.data);
  } else {
    advice.key = "batch.global";
    advice.change = format("{}: half as many updates for the same pictures", 2 * f.global);
    advice.gain = f.optimizer / 2;
  }
  return advice;
}

Found launch(const Facts& f) {
  if (!f.traced || f.issue < kLaunch || f.compute_busy > 0.9) return {};
  const double gain = std::max(0.0, std::min(f.issue / 2, 0.95 - f.compute_busy));
  return Advice{
      .rule = "launch",
      .title = "The host cannot issue work fast enough",
      .evidence = format("issuing takes {} of a step, and the compute lane is busy for {} "
                         "of it",
                         percent(f.issue), percent(f.compute_busy)),
      .key = "batch.micro",
      .change = format("{}: half as many instructions a step", 2 * f.micro),
      .gain = gain};
}

Found small_batch(const Facts& f) {
  const int64_t rows = f.micro * f.tokens;
  if (rows >= kEnoughRows || f.device != DeviceKind::cuda || f.micros == 1) return {};
  const int64_t micro = std::min((kEnoughRows + f.tokens - 1) / f.tokens, f.micro * f.micros);
  return Advice{
      .rule = "small micro-batch",
      .title = "Matrix products have too few rows",
      .evidence = format("a micro-batch of {} has {} rows, so every weight that is read "
                         "serves {} of them; below {} a product is bound by reading weights",
                         f.micro, rows, rows, kEnoughRows),
      .key = "batch.micro",
      .change = format("{}", micro),
      .gain =
          f.compute_busy * (1 - static_cast<double>(rows) / static_cast<double>(micro * f.tokens))};
}

// Kernels that wait for other ranks run as well, on few SMs: asked only where the compute lane has
// no such kernels and is what keeps the GPU busy.
Found idle_sms(const Facts& f) {
  if (!f.traced || f.tensor > 1 || f.micros == 1 || small_batch(f)) return {};
  const double active = f.sm_activity / f.gpu_busy;
  if (f.compute_busy < kGpuBusy || !(f.gpu_busy >= kGpuBusy) || !(active < kSmActivity)) return {};
  return Advice{
      .rule = "idle SMs",
      .title = "Kernels are too small for the GPU",
      .evidence = format("a kernel runs for {} of the time, but only {} of the SMs have work",
                         percent(f.gpu_busy), percent(f.sm_activity)),
      .key = "batch.micro",
      .change = format("{}: half as many kernels, each of twice the work", 2 * f.micro),
      .gain = f.compute_busy * (1 - active / std::min(1.0, 2 * active))};
}

Found loss_scale(const Facts& f) {
  if (f.loss_scales.size() < 2) return {};
  const double highest = *std::max_element(f.loss_scales.begin(), f.loss_scales.end());
  const double last = f.loss_scales.back();
  if (last > highest * kCollapse) return {};
  return Advice{
      .rule = "loss scale",
      .title = "The loss scale collapses",
      .evidence = format("it fell from {:g} to {:g} in the last {} steps, {} of which were "
                         "skipped",
                         highest, last, f.steps, f.skipped),
      .key = "optimizer.lr",
      .change =
          "lower, or raise optimizer.warmup_steps; where the GPU has it, "
          "precision.type = \"bf16\" needs no scale",
      .gain = f.steps > 0 ? static_cast<double>(f.skipped) / static_cast<double>(f.steps) : 0};
}

Found straggler(const Facts& f) {
  if (f.speeds.size() < 2) return {};
  std::vector<double> sorted;
  for (const auto& rank : f.speeds) sorted.push_back(rank.seconds_per_flop);
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[(sorted.size() - 1) / 2];
  const auto slowest = std::max_element(
      f.speeds.begin(), f.speeds.end(),
      [](const auto& a, const auto& b) { return a.seconds_per_flop < b.seconds_per_flop; });
  const double factor = slowest->seconds_per_flop / median;
  if (!(factor >= kStraggler)) return {};
  const bool on_cpu = f.device == DeviceKind::cpu;
  return Advice{.rule = "straggler",
                .title = format("{} is slow", slowest->place),
                .evidence = format("on {} it takes {:.2f} times as long for the same FLOPs as the "
                                   "median rank, and the others wait for it",
                                   slowest->host, factor),
                .key = on_cpu ? "run.threads" : "submit --more",
                .change = on_cpu
                              ? format("fewer, if ranks share cores on {}; else leave it out with "
                                       "submit --more=--exclude={}",
                                       slowest->host, slowest->host)
                              : format("--exclude={}, unless its clocks or temperature explain it",
                                       slowest->host),
                .gain = f.compute_busy * (1 - 1 / factor)};
}

Found headroom(const Facts& f) {
  if (f.device_limit <= 0 || f.recompute < kRecompute ||
      f.device_bytes_without_recompute > f.device_limit)
    return {};
  return Advice{
      .rule = "memory headroom",
      .title = "Recomputation is not needed",
      .evidence = format("{} of a step recomputes what {} of device memory would hold; "
                         "the limit is {}",
                         percent(f.recompute), show_bytes(f.device_bytes_without_recompute),
                         show_bytes(f.device_limit)),
      .key = "memory.recompute",
      .change = "\"none\"",
      .gain = f.recompute};
}

Found tile(const Facts& f) {
  if (f.tokens % 8 == 0 || bytes_of(f.type) != 2) return {};
  const int64_t padded = (f.tokens + kTile - 1) / kTile * kTile;
  const bool class_token = f.pool == Pool::token && (f.tokens - 1) % 8 == 0;
  const int64_t fewer = class_token ? f.tokens - 1 : f.tokens / 8 * 8;
  const int64_t then = (fewer + kTile - 1) / kTile * kTile;
  Advice advice{.rule = "tile",
                .title = "Tokens are not a multiple of the matrix units' tile",
                .evidence = format("{} tokens leave no even rows of 8: attention works as if on {}",
                                   f.tokens, padded)};
  advice.key = class_token ? "model.pool" : "model.image";
  advice.change =
      class_token ? format("\"mean\": {} tokens (another model: not on resume)", fewer)
                  : std::string(
                        "a size whose number of patches is a multiple of 8 (another model: not on "
                        "resume)");
  // A fifth is what attention takes of a block at most in the ViT family.
  advice.gain = 0.2 * (1 - static_cast<double>(then) / static_cast<double>(padded));
  return advice;
}

}  // namespace

std::vector<Advice> advise(const Facts& facts) {
  std::vector<Advice> all;
  for (const auto rule : {bubble, tensor_across_nodes, exposed_reduction, loader, optimizer, launch,
                          small_batch, idle_sms, loss_scale, straggler, headroom, tile})
    if (const Found found = rule(facts)) all.push_back(*found);
  std::stable_sort(all.begin(), all.end(),
                   [](const Advice& a, const Advice& b) { return a.gain > b.gain; });
  return all;
}

}  // namespace voltapile
