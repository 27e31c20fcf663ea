// Private to report: what GPUs said of themselves while a run trained, and what it cost.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "voltapile/base/dtype.hpp"
#include "voltapile/report/report.hpp"

namespace voltapile {

// Means over the samples from the first step on; NaN where the GPU does not tell.
struct GpuUse {
  std::string place;
  double utilisation = 0, memory_utilisation = 0;
  double sm_activity = 0, tensor_activity = 0;
  double most_memory_bytes = 0, hottest_celsius = 0;  // the largest instead
  double watts = 0;                                   // energy over time
  double sm_clock_hz = 0;
  double pcie_received = 0, pcie_sent = 0, nvlink_received = 0, nvlink_sent = 0;  // bytes a second
};

struct GpuFigures {
  std::vector<GpuUse> gpus;
  double watts = 0;                         // of all
  double joules_per_sample = 0;             // of all: evaluation and saving between steps included
  double utilisation = 0, sm_activity = 0;  // means over the GPUs that tell, NaN where none does
};
// Nothing where no GPU was sampled while a step was done. `global`: samples of a step.
std::optional<GpuFigures> gpu_figures(const Trace& trace, int64_t global);

double samples_per_kwh(const GpuFigures& figures);
// Of one pass over all pictures.
double epoch_kwh(const GpuFigures& figures, int64_t epoch_samples);
// "1.23 M samples/kWh, 1.04 kWh an epoch; 4 GPUs draw 2,600 W, ...".
std::string describe_energy(const GpuFigures& figures, int64_t epoch_samples);

// What a maker's datasheet gives for dense matrix products.
struct PeakRate {
  std::string gpu;
  double flops_per_second = 0;
};
// By the device's own name, as the trace has it; nothing for a GPU that the table does not have.
std::optional<PeakRate> peak_rate(std::string_view device, DType type, bool tf32);

// One rank's arithmetic as shares of the datasheet's rate and of the measured one, where they are
// known.
struct ShareOf {
  double share = 0;
  std::string of;
};
std::vector<ShareOf> shares_of_peak(const Run& run, double flops_per_second);

}  // namespace voltapile
