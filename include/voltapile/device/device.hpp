// SEAM 1: where tensors live and operations run. Backends: cpu, dry; cuda in cuda_kernels/.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "voltapile/schedule/instruction.hpp"

namespace voltapile {

class Stream;
class Kernels;

// A point in a stream's order: "everything enqueued before". A plain value; the default one has
// always happened.
struct Event {
  Stream* stream = nullptr;
  uint64_t ticket = 0;
};

// A queue of asynchronous work, in order. One a lane; used from one host thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  // Runs `work` on a host thread when all that was enqueued before is done; what is enqueued later
  // waits for it. An exception from `work` fails the device: later work is skipped and
  // Device::wait_on_host rethrows it.
  virtual void run_on_host(std::function<void()> work) = 0;
};

// Memory of the device or pinned host memory; freed with the handle. Contents start as NaN bytes
// (0xff), so that reading what nobody wrote shows.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t bytes, std::function<void(void*)> release)
      : data_(data, std::move(release)), bytes_(bytes) {}
  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<void, std::function<void(void*)>> data_{nullptr, [](void*) {}};
  size_t bytes_ = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string describe() const = 0;
  virtual Buffer allocate(size_t bytes,
                          std::string_view what) = 0;  // 256-byte aligned; Error(does_not_fit)
  virtual Buffer allocate_host(size_t bytes,
                               std::string_view what) = 0;  // visible to copies on every lane
  virtual size_t allocated_bytes() const = 0;
  virtual Stream& stream(Lane lane) = 0;
  virtual Event record(Stream& stream) = 0;
  virtual void wait(
      Stream& stream,
      Event event) = 0;  // later work on `stream` starts after `event`; host not blocked
  virtual void wait_on_host(Event event) = 0;  // blocks; rethrows the first failure of any lane
  virtual void copy(void* dst, const void* src, size_t bytes, Stream& stream) = 0;
  virtual Kernels& kernels() = 0;
  // Makes blocked and later waits throw Error(failure, why): called when another rank failed.
  virtual void fail(const std::string& why) = 0;
  // Blocks until no lane runs anything, whatever has failed: only then may memory go.
  virtual void wait_until_idle() = 0;
};

// threads: of the compute pool; >= 1.
std::unique_ptr<Device> make_cpu_device(int threads);
// Counts allocations, operations and bytes; computes nothing. Addresses are not real, but for
// host buffers up to 4 kB, which read as zeros.
std::unique_ptr<Device> make_dry_device();
// cuda_kernels/ or its twin src/device/no_cuda.cpp, whichever was linked.
bool cuda_is_built();
std::unique_ptr<Device> make_cuda_device(
    int local_rank);  // Error(bad_input) when built without CUDA

}  // namespace voltapile
