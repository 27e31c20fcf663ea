#include "gpus.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "voltapile/base/units.hpp"

namespace voltapile {
namespace {

constexpr double kJoulesPerKwh = 3.6e6;

struct Spent {
  double joules = 0, seconds = 0, nvlink_received = 0, nvlink_sent = 0;
  int64_t steps = 0;
};

// Of those that are known; NaN where none is.
template <class Row>
double mean_known(const std::vector<Row>& rows, double Row::*value) {
  double sum = 0, count = 0;
  for (const Row& row : rows) {
    if (std::isnan(row.*value)) continue;
    sum += row.*value;
    ++count;
  }
  return sum / count;
}

// Between samples of one session: each starts its counters anew.
Spent spent_by(const std::vector<GpuSample>& samples) {
  Spent spent;
  for (size_t i = 1; i < samples.size(); ++i) {
    const GpuSample &a = samples[i - 1], &b = samples[i];
    const bool one_session = !(b.energy_joules < a.energy_joules) && b.step >= a.step;
    if (a.step < 1 || !one_session) continue;
    spent.joules += b.energy_joules - a.energy_joules;
    spent.seconds += 1e-9 * static_cast<double>(b.time_ns - a.time_ns);
    spent.nvlink_received += b.nvlink_received_bytes - a.nvlink_received_bytes;
    spent.nvlink_sent += b.nvlink_sent_bytes - a.nvlink_sent_bytes;
    spent.steps += b.step - a.step;
  }
  return spent;
}

GpuUse use_of(const RankRecord& rank, const Spent& spent) {
  std::vector<GpuSample> samples;
  std::copy_if(rank.gpu_samples.begin(), rank.gpu_samples.end(), std::back_inserter(samples),
               [](const GpuSample& sample) { return sample.step >= 1; });
  const auto mean = [&](double GpuSample::*value) { return mean_known(samples, value); };
  const auto most = [&](double GpuSample::*value) {
    double largest = GpuSample::kUnknown;
    for (const GpuSample& sample : samples) largest = std::fmax(largest, sample.*value);
    return largest;
  };
  return {.place = rank.place,
          .utilisation = mean(&GpuSample::utilisation),
          .memory_utilisation = mean(&GpuSample::memory_utilisation),
          .sm_activity = mean(&GpuSample::sm_activity),
          .tensor_activity = mean(&GpuSample::tensor_activity),
          .most_memory_bytes = most(&GpuSample::memory_bytes),
          .hottest_celsius = most(&GpuSample::temperature_celsius),
          .watts = spent.joules / spent.seconds,
          .sm_clock_hz = mean(&GpuSample::sm_clock_hz),
          .pcie_received = mean(&GpuSample::pcie_received_bytes_per_second),
          .pcie_sent = mean(&GpuSample::pcie_sent_bytes_per_second),
          .nvlink_received = spent.nvlink_received / spent.seconds,
          .nvlink_sent = spent.nvlink_sent / spent.seconds};
}

// Dense, in TFLOP/s; 0: not on its tensor cores (f32 has none).
struct Row {
  std::string_view part, gpu;  // part: of the name that the driver gives
  double f16, bf16, tf32, f32;
};
// The first row that fits. NVIDIA's datasheets: "NVIDIA V100 Tensor Core GPU" (January 2020),
// "NVIDIA A100 Tensor Core GPU" (June 2021), "NVIDIA H100 Tensor Core GPU" and "NVIDIA H200 Tensor
// Core GPU" (2024), whose tensor rates with sparsity are halved here.
constexpr std::array<Row, 9> kRows{{
    {"V100S", "V100S", 130, 0, 0, 16.4},
    {"V100-PCIE", "V100 PCIe", 112, 0, 0, 14},
    {"V100", "V100 SXM2", 125, 0, 0, 15.7},
    {"A100", "A100", 312, 312, 156, 19.5},
    {"H100 PCIe", "H100 PCIe", 756.5, 756.5, 378, 51},
    {"H100 NVL", "H100 NVL", 835.5, 835.5, 417.5, 60},
    {"H100", "H100 SXM", 989.5, 989.5, 494.5, 67},
    {"H200 NVL", "H200 NVL", 835.5, 835.5, 417.5, 60},
    {"H200", "H200", 989.5, 989.5, 494.5, 67},
}};

}  // namespace

std::optional<GpuFigures> gpu_figures(const Trace& trace, int64_t global) {
  GpuFigures figures;
  double joules_per_step = 0;
  for (const RankRecord& rank : trace.ranks) {
    const Spent spent = spent_by(rank.gpu_samples);
    if (spent.steps == 0 || spent.seconds <= 0) continue;
    figures.gpus.push_back(use_of(rank, spent));
    figures.watts += figures.gpus.back().watts;
    joules_per_step += spent.joules / static_cast<double>(spent.steps);
  }
  if (figures.gpus.empty()) return std::nullopt;
  figures.joules_per_sample = joules_per_step / static_cast<double>(global);
  figures.utilisation = mean_known(figures.gpus, &GpuUse::utilisation);
  figures.sm_activity = mean_known(figures.gpus, &GpuUse::sm_activity);
  return figures;
}

double samples_per_kwh(const GpuFigures& figures) {
  return kJoulesPerKwh / figures.joules_per_sample;
}

std::string describe_energy(const GpuFigures& figures, int64_t epoch_samples) {
  const auto count = figures.gpus.size();
  std::string text = format("{} samples/kWh", show_count(samples_per_kwh(figures)));
  if (epoch_samples > 0) text += format(", {:.3g} kWh an epoch", epoch_kwh(figures, epoch_samples));
  return text + format("; {} GPU{} {} {:.0f} W, evaluation and saving included", count,
                       count == 1 ? "" : "s", count == 1 ? "draws" : "draw", figures.watts);
}

std::vector<ShareOf> shares_of_peak(const Run& run, double flops_per_second) {
  std::vector<ShareOf> shares;
  const Deck& deck = run.plan.deck;
  const std::string device = run.trace ? run.trace->ranks.front().device : "";
  if (const auto peak = peak_rate(device, deck.precision.type, deck.precision.tf32))
    shares.push_back({flops_per_second / peak->flops_per_second,
                      format("the datasheet's {}/s ({}, {})", show_flops(peak->flops_per_second),
                             peak->gpu, name_of(deck.precision.type))});
  if (run.hardware)
    shares.push_back(
        {flops_per_second / run.hardware->product_flops_per_second,
         format("the {}/s measured on {}", show_flops(run.hardware->product_flops_per_second),
                run.hardware->device)});
  return shares;
}

double epoch_kwh(const GpuFigures& figures, int64_t epoch_samples) {
  return figures.joules_per_sample * static_cast<double>(epoch_samples) / kJoulesPerKwh;
}

std::optional<PeakRate> peak_rate(std::string_view device, DType type, bool tf32) {
  for (const Row& row : kRows) {
    if (device.find(row.part) == std::string_view::npos) continue;
    const double rate = type == DType::f16    ? row.f16
                        : type == DType::bf16 ? row.bf16
                        : tf32                ? row.tf32
                                              : row.f32;
    if (rate == 0) return std::nullopt;
    return PeakRate{std::string(row.gpu), 1e12 * rate};
  }
  return std::nullopt;
}

}  // namespace voltapile
