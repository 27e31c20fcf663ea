// What the dry device counted. A rehearsal runs the real engine and layers on it: every allocation,
// kernel call, copy and byte is known without computing anything.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "voltapile/device/device.hpp"

namespace voltapile {

struct KernelCount {
  int64_t calls = 0;
  double flops = 0;  // of matrix products and attention; multiply-adds count as two
  double bytes = 0;  // operands read and results written, once each: the memory-bound minimum
};
struct AllocationCount {
  int64_t live = 0;  // buffers that exist now
  size_t bytes = 0;  // of them
  size_t peak_bytes = 0;
};

struct DryCounters {
  std::map<std::string, KernelCount> kernels;            // by the name of the operation
  std::map<std::string, AllocationCount> device_memory;  // by the `what` of allocate
  std::map<std::string, AllocationCount> host_memory;    // by the `what` of allocate_host
  size_t device_bytes = 0, peak_device_bytes = 0;
  size_t host_bytes = 0, peak_host_bytes = 0;
  std::array<int64_t, kLaneCount> copies{};
  std::array<double, kLaneCount> copied_bytes{};
  std::array<int64_t, kLaneCount> host_calls{};  // run_on_host; the work itself is dropped
  double flops() const;                          // of all kernels
};

// Of a device made by make_dry_device(); a fault of the program for any other. Valid while the
// device lives. Not synchronised: one host thread drives a dry device.
const DryCounters& dry_counters(const Device& device);

}  // namespace voltapile
