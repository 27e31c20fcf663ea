// NVIDIA's management library, opened when it is asked for, so that a program runs where there is
// none. Its functions are looked up by name, so that no header of it is needed; types and numbers
// are those of nvml.h, "NVML API Reference Guide".
#pragma once
#include <string>

namespace voltapile {

class Nvml {
 public:
  using Gpu = void*;                                            // nvmlDevice_t
  static constexpr int kSuccess = 0;                            // NVML_SUCCESS
  static constexpr const char* kLibrary = "libnvidia-ml.so.1";  // the driver's

  struct PciInfo {  // nvmlPciInfo_t of version 3
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
  };
  struct MemoryInfo {  // nvmlMemory_t
    unsigned long long total, free, used;
  };
  struct Utilization {  // nvmlUtilization_t: per cent of the last sample period
    unsigned gpu, memory;
  };
  struct FieldValue {  // nvmlFieldValue_t
    unsigned field, scope;
    long long timestamp, latency_us;
    int value_type, result;
    unsigned long long value;  // of the type that the field has: here always an unsigned integer
  };
  using GpmSample = void*;  // nvmlGpmSample_t
  struct GpmSupport {       // nvmlGpmSupport_t
    unsigned version, supported;
  };
  struct GpmMetric {  // nvmlGpmMetric_t
    unsigned metric;
    int result;
    double value;
    const char *short_name, *long_name, *unit;
  };
  struct GpmMetrics {  // nvmlGpmMetricsGet_t, of NVML_GPM_METRIC_MAX metrics
    unsigned version, count;
    GpmSample from, to;
    GpmMetric metrics[98];
  };

  explicit Nvml(const std::string& library = kLibrary);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool is_here() const { return library_ != nullptr; }
  // Whether the driver answers. Nothing else works before.
  bool start() { return started_ = call("nvmlInit_v2"); }

  // Whether the function is there and said that it succeeded.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    auto* function = reinterpret_cast<int (*)(Arguments...)>(symbol(name));
    return function != nullptr && function(arguments...) == kSuccess;
  }

 private:
  void* symbol(const char* name) const;  // null where the library has none of that name

  void* library_;
  bool started_ = false;
};

}  // namespace voltapile
