// Private to train: looks at one GPU at even times, on a thread of its own.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/device/nvml.hpp"
#include "voltapile/trace/gpu_sample.hpp"

#include "gpu_activity.hpp"

namespace voltapile {

class GpuSampler {
 public:
  // Of the GPU at this PCI address; the first look is taken here, the next one `seconds` later.
  // Error(failure) when the driver does not know the GPU.
  GpuSampler(const std::string& pci_address, double seconds,
             const std::string& library = Nvml::kLibrary);
  ~GpuSampler();

  // The last step that is done: what the samples from now on say.
  void set_step(int64_t step) { step_ = step; }
  // All since the last call, and one of now; rank is 0 and time_ns by this process's clock. A
  // caller that does not come for long finds them thinned out evenly.
  std::vector<GpuSample> take();

 private:
  struct Counters {  // as the driver gives them, since it was loaded
    double nvlink_received = 0, nvlink_sent = 0, energy = 0;
  };
  GpuSample look();
  void keep(const GpuSample& sample);
  void run();

  Nvml nvml_;
  Nvml::Gpu gpu_ = nullptr;
  std::optional<GpuActivity> activity_;
  std::atomic<int64_t> step_ = 0;
  bool begun_ = false;  // from here on: the thread that holds mutex_
  Counters begin_;
  GpuSample before_;
  double integrated_joules_ = 0;
  std::vector<GpuSample> samples_;
  size_t stride_ = 1, looks_ = 0;  // each stride-th look is kept
  std::chrono::duration<double> pause_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;
  std::thread thread_;
};

// The sampler of this rank's GPU; none on a device without one, for seconds = 0, where the driver's
// library does not know the GPU (said once), and where a rank before this one speaks for the same
// GPU. Collective.
std::unique_ptr<GpuSampler> sample_gpu(const std::string& pci_address, double seconds,
                                       Communicator& world);

}  // namespace voltapile
