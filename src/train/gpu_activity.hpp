// Private to train: how much of one GPU works, by NVML's GPU performance monitoring (GPM), which
// Hopper and later have.
#pragma once
#include <array>

#include "voltapile/device/nvml.hpp"
#include "voltapile/trace/gpu_sample.hpp"

namespace voltapile {

class GpuActivity {
 public:
  // NVML says nothing of looks that are closer.
  static constexpr double kShortest = 0.1;

  // Both are used as long as this lives.
  GpuActivity(const Nvml& nvml, Nvml::Gpu gpu);
  ~GpuActivity();
  GpuActivity(const GpuActivity&) = delete;
  GpuActivity& operator=(const GpuActivity&) = delete;

  // Sets sm_activity, tensor_activity, sm_occupancy and memory_bandwidth_utilisation: means since
  // the last look that was kept. A look sooner than kShortest after that one is not kept, and gives
  // what that one gave. Unknown at the first look, where the GPU or its driver has no GPM, and
  // where the driver refuses. `seconds` is of any clock.
  void look(double seconds, GpuSample& sample);

 private:
  struct Figures {
    double sm = GpuSample::kUnknown, tensor = GpuSample::kUnknown, occupancy = GpuSample::kUnknown,
           bandwidth = GpuSample::kUnknown;
  };
  Figures between(Nvml::GpmSample from, Nvml::GpmSample to) const;

  const Nvml& nvml_;
  Nvml::Gpu gpu_;
  std::array<Nvml::GpmSample, 2> samples_{};  // null where there is no GPM
  bool begun_ = false;                        // samples_[0] is of kept_at_
  double kept_at_ = 0;
  Figures last_;
};

}  // namespace voltapile
