// What a GPU said of itself at one moment: a row of /gpu_samples in trace.h5.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

namespace voltapile {

// Figures that the GPU or its driver does not give are NaN.
struct GpuSample {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  int64_t rank = 0;
  int64_t step = 0;                      // the last one that was done, 0 before the first
  int64_t time_ns = 0;                   // since 1970 on rank 0's clock
  double utilisation = kUnknown;         // share of the driver's last sample period in which a
                                         // kernel ran
  double memory_utilisation = kUnknown;  // in which device memory was read or written
  // Means since the look before this one that was at least 100 ms earlier (Hopper and later):
  double sm_activity = kUnknown;                   // share of the SMs that had work
  double tensor_activity = kUnknown;               // share of the time that tensor cores worked
  double sm_occupancy = kUnknown;                  // warps on the SMs over the most that fit
  double memory_bandwidth_utilisation = kUnknown;  // of device memory's peak
  double memory_bytes = kUnknown;                  // in use on the whole GPU
  double power_watts = kUnknown;
  double sm_clock_hz = kUnknown, memory_clock_hz = kUnknown;
  double temperature_celsius = kUnknown;
  double pcie_received_bytes_per_second = kUnknown, pcie_sent_bytes_per_second = kUnknown;
  // Since this session's first sample; over all links of the GPU.
  double nvlink_received_bytes = kUnknown, nvlink_sent_bytes = kUnknown;
  // Since this session's first sample: by the GPU's own counter (Volta and later), else power over
  // time.
  double energy_joules = kUnknown;
};

// The same bits, NaN being equal to itself.
inline bool operator==(const GpuSample& a, const GpuSample& b) {
  const auto same = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  return a.rank == b.rank && a.step == b.step && a.time_ns == b.time_ns &&
         same(a.utilisation, b.utilisation) && same(a.memory_utilisation, b.memory_utilisation) &&
         same(a.sm_activity, b.sm_activity) && same(a.tensor_activity, b.tensor_activity) &&
         same(a.sm_occupancy, b.sm_occupancy) &&
         same(a.memory_bandwidth_utilisation, b.memory_bandwidth_utilisation) &&
         same(a.memory_bytes, b.memory_bytes) && same(a.power_watts, b.power_watts) &&
         same(a.sm_clock_hz, b.sm_clock_hz) && same(a.memory_clock_hz, b.memory_clock_hz) &&
         same(a.temperature_celsius, b.temperature_celsius) &&
         same(a.pcie_received_bytes_per_second, b.pcie_received_bytes_per_second) &&
         same(a.pcie_sent_bytes_per_second, b.pcie_sent_bytes_per_second) &&
         same(a.nvlink_received_bytes, b.nvlink_received_bytes) &&
         same(a.nvlink_sent_bytes, b.nvlink_sent_bytes) && same(a.energy_joules, b.energy_joules);
}

}  // namespace voltapile
