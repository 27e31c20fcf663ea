#include "gpu_activity.hpp"

#include <utility>

namespace voltapile {
namespace {

// Numbers of nvml.h: NVML_GPM_SUPPORT_VERSION, NVML_GPM_METRICS_GET_VERSION, NVML_GPM_METRIC_*.
constexpr unsigned kSupportVersion = 1, kMetricsVersion = 1;
constexpr unsigned kSm = 2, kOccupancy = 3, kTensor = 5, kBandwidth = 10;

}  // namespace

GpuActivity::GpuActivity(const Nvml& nvml, Nvml::Gpu gpu) : nvml_(nvml), gpu_(gpu) {
  Nvml::GpmSupport support{.version = kSupportVersion, .supported = 0};
  if (!nvml_.call("nvmlGpmQueryDeviceSupport", gpu_, &support) || support.supported == 0) return;
  for (Nvml::GpmSample& sample : samples_)
    if (!nvml_.call("nvmlGpmSampleAlloc", &sample)) sample = nullptr;
}

GpuActivity::~GpuActivity() {
  for (Nvml::GpmSample sample : samples_)
    if (sample != nullptr) nvml_.call("nvmlGpmSampleFree", sample);
}

void GpuActivity::look(double seconds, GpuSample& sample) {
  if (samples_[0] == nullptr || samples_[1] == nullptr) return;
  if (!begun_ || seconds - kept_at_ >= kShortest) {
    const bool got = nvml_.call("nvmlGpmSampleGet", gpu_, samples_[1]);
    last_ = got && begun_ ? between(samples_[0], samples_[1]) : Figures{};
    if (got) {
      std::swap(samples_[0], samples_[1]);
      begun_ = true;
      kept_at_ = seconds;
    }
  }
  sample.sm_activity = last_.sm;
  sample.tensor_activity = last_.tensor;
  sample.sm_occupancy = last_.occupancy;
  sample.memory_bandwidth_utilisation = last_.bandwidth;
}

GpuActivity::Figures GpuActivity::between(Nvml::GpmSample from, Nvml::GpmSample to) const {
  Figures figures;
  const std::array<std::pair<unsigned, double*>, 4> asked{{{kSm, &figures.sm},
                                                           {kTensor, &figures.tensor},
                                                           {kOccupancy, &figures.occupancy},
                                                           {kBandwidth, &figures.bandwidth}}};
  Nvml::GpmMetrics metrics{};
  metrics.version = kMetricsVersion;
  metrics.count = asked.size();
  metrics.from = from;
  metrics.to = to;
  for (size_t i = 0; i < asked.size(); ++i) metrics.metrics[i].metric = asked[i].first;
  if (!nvml_.call("nvmlGpmMetricsGet", &metrics)) return figures;
  for (size_t i = 0; i < asked.size(); ++i) {
    const Nvml::GpmMetric& metric = metrics.metrics[i];
    if (metric.result == Nvml::kSuccess) *asked[i].second = 0.01 * metric.value;  // of per cent
  }
  return figures;
}

}  // namespace voltapile
