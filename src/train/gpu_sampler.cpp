#include "gpu_sampler.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "voltapile/base/clock.hpp"
#include "voltapile/base/error.hpp"
#include "voltapile/base/host.hpp"
#include "voltapile/base/log.hpp"

namespace voltapile {
namespace {

// Three days at one a second are thinned out to one in eight: 8 MB.
constexpr size_t kMostSamples = 1 << 16;

// Numbers of nvml.h.
constexpr int kSmClock = 1, kMemoryClock = 2, kGpuSensor = 0, kPcieSent = 0, kPcieReceived = 1;
constexpr unsigned kNvlinkSentKib = 138, kNvlinkReceivedKib = 139, kAllLinks = ~0u;

// A figure that one call gives, times its unit.
template <class T, class... Arguments>
double figure(const Nvml& nvml, double unit, const char* name, Arguments... arguments) {
  T value{};
  return nvml.call(name, arguments..., &value) ? unit * static_cast<double>(value)
                                               : GpuSample::kUnknown;
}

void read_nvlink(const Nvml& nvml, Nvml::Gpu gpu, double& received, double& sent) {
  std::array<Nvml::FieldValue, 2> fields{};
  fields[0] = {.field = kNvlinkReceivedKib, .scope = kAllLinks};
  fields[1] = {.field = kNvlinkSentKib, .scope = kAllLinks};
  received = sent = GpuSample::kUnknown;
  if (!nvml.call("nvmlDeviceGetFieldValues", gpu, 2, fields.data())) return;
  if (fields[0].result == Nvml::kSuccess) received = 1024.0 * static_cast<double>(fields[0].value);
  if (fields[1].result == Nvml::kSuccess) sent = 1024.0 * static_cast<double>(fields[1].value);
}

}  // namespace

GpuSampler::GpuSampler(const std::string& pci_address, double seconds, const std::string& library)
    : nvml_(library), pause_(seconds) {
  const bool answers = nvml_.is_here() && nvml_.start();
  if (!answers || !nvml_.call("nvmlDeviceGetHandleByPciBusId_v2", pci_address.c_str(), &gpu_)) {
    throw Error(ExitCode::failure,
                format("{}: {}", library,
                       answers ? format("knows no GPU at {}", pci_address) : "does not answer"));
  }
  activity_.emplace(nvml_, gpu_);
  keep(look());
  thread_ = std::thread([this] { run(); });
}

GpuSampler::~GpuSampler() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void GpuSampler::run() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, pause_, [this] { return ending_; })) keep(look());
}

std::vector<GpuSample> GpuSampler::take() {
  const std::lock_guard lock(mutex_);
  samples_.push_back(look());
  stride_ = 1;
  return std::exchange(samples_, {});
}

void GpuSampler::keep(const GpuSample& sample) {
  if (looks_++ % stride_ != 0) return;
  samples_.push_back(sample);
  if (samples_.size() < kMostSamples) return;
  for (size_t i = 0; 2 * i < samples_.size(); ++i) samples_[i] = samples_[2 * i];
  samples_.resize((samples_.size() + 1) / 2);
  stride_ *= 2;
  looks_ = 0;
}

GpuSample GpuSampler::look() {
  GpuSample s{.step = step_, .time_ns = static_cast<int64_t>(1e9 * now_seconds())};
  Nvml::Utilization use{};
  if (nvml_.call("nvmlDeviceGetUtilizationRates", gpu_, &use)) {
    s.utilisation = 0.01 * use.gpu;
    s.memory_utilisation = 0.01 * use.memory;
  }
  activity_->look(1e-9 * static_cast<double>(s.time_ns), s);
  Nvml::MemoryInfo memory{};
  if (nvml_.call("nvmlDeviceGetMemoryInfo", gpu_, &memory))
    s.memory_bytes = static_cast<double>(memory.used);
  s.power_watts = figure<unsigned>(nvml_, 1e-3, "nvmlDeviceGetPowerUsage", gpu_);
  s.sm_clock_hz = figure<unsigned>(nvml_, 1e6, "nvmlDeviceGetClockInfo", gpu_, kSmClock);
  s.memory_clock_hz = figure<unsigned>(nvml_, 1e6, "nvmlDeviceGetClockInfo", gpu_, kMemoryClock);
  s.temperature_celsius = figure<unsigned>(nvml_, 1, "nvmlDeviceGetTemperature", gpu_, kGpuSensor);
  s.pcie_received_bytes_per_second =
      figure<unsigned>(nvml_, 1e3, "nvmlDeviceGetPcieThroughput", gpu_, kPcieReceived);
  s.pcie_sent_bytes_per_second =
      figure<unsigned>(nvml_, 1e3, "nvmlDeviceGetPcieThroughput", gpu_, kPcieSent);
  Counters now;
  read_nvlink(nvml_, gpu_, now.nvlink_received, now.nvlink_sent);
  now.energy = figure<unsigned long long>(nvml_, 1e-3, "nvmlDeviceGetTotalEnergyConsumption", gpu_);
  if (!begun_) begin_ = now;
  s.nvlink_received_bytes = now.nvlink_received - begin_.nvlink_received;
  s.nvlink_sent_bytes = now.nvlink_sent - begin_.nvlink_sent;
  s.energy_joules = now.energy - begin_.energy;
  if (std::isnan(s.energy_joules)) {
    const double seconds = begun_ ? 1e-9 * static_cast<double>(s.time_ns - before_.time_ns) : 0;
    // Unknown from the first power on that is.
    integrated_joules_ += seconds * 0.5 * (s.power_watts + (begun_ ? before_.power_watts : 0));
    s.energy_joules = integrated_joules_;
  }
  begun_ = true;
  before_ = s;
  return s;
}

std::unique_ptr<GpuSampler> sample_gpu(const std::string& pci_address, double seconds,
                                       Communicator& world) {
  const std::string mine = pci_address.empty() ? "" : host_name() + " " + pci_address;
  const std::vector<std::string> all = world.gather_text(mine);
  const auto first = std::find(all.begin(), all.end(), mine) - all.begin();
  if (mine.empty() || seconds == 0 || first != world.rank()) return nullptr;
  try {
    return std::make_unique<GpuSampler>(pci_address, seconds);
  } catch (const Error& error) {
    log::warn(format("No figures of the GPU of {} are taken: {}", world.place, error.what()));
    return nullptr;
  }
}

}  // namespace voltapile
