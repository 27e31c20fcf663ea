// SEAM 1: where tensors live and operations run. Backends: cpu, dry; cuda in cuda_kernels/.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "voltapile/base/dtype.hpp"
#include "voltapile/schedule/instruction.hpp"

namespace voltapile {

class Stream;
class Kernels;
class ThreadPool;

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
  // Of the GPU, "0000:17:00.0"; empty where the device has none.
  virtual std::string pci_address() const { return {}; }
  // Libraries and drivers that results and speed depend on: name and version.
  virtual std::vector<std::pair<std::string, std::string>> versions() const { return {}; }
  virtual Buffer allocate(size_t bytes,
                          std::string_view what) = 0;  // 256-byte aligned; Error(does_not_fit)
  virtual Buffer allocate_host(size_t bytes,
                               std::string_view what) = 0;  // visible to copies on every lane
  // Host memory that the host alone computes on, touched by the pool's threads.
  virtual Buffer allocate_compute(size_t bytes, std::string_view what, ThreadPool& pool) = 0;
  virtual size_t allocated_bytes() const = 0;
  // Device memory that this process holds besides: the driver's, its libraries' and their code, and
  // what kernels need for themselves.
  virtual size_t overhead_bytes() const { return 0; }
  virtual Stream& stream(Lane lane) = 0;
  virtual Event record(Stream& stream) = 0;
  virtual void wait(
      Stream& stream,
      Event event) = 0;  // later work on `stream` starts after `event`; host not blocked
  virtual void wait_on_host(Event event) = 0;  // blocks; rethrows the first failure of any lane
  virtual void copy(void* dst, const void* src, size_t bytes, Stream& stream) = 0;
  // Writes to *seconds, in memory of allocate_host, when the stream gets here: on the clock of
  // now_seconds(), and there to be read once a later event of the stream has been waited for.
  virtual void mark(Stream& stream, double* seconds) = 0;
  // Compares a clock of the device's own with now_seconds() anew, for the marks that follow; takes
  // some hundred microseconds of the calling thread.
  virtual void align_clock() {}
  // Enqueues work that will come again: under one key, always the same kernels and copies on the
  // same memory, nothing that runs on the host. A backend may record it once and replay it.
  virtual void repeat(Stream& stream, uint64_t key, const std::function<void()>& enqueue) = 0;
  // What repeat() has recorded, each recording once, however often it is replayed.
  struct Recordings {
    size_t count = 0, kernels = 0;
  };
  virtual Recordings recordings() const { return {}; }
  // What the calling thread enqueues between the two is one instruction's, for a profiler that
  // shows it by name.
  virtual void open_range(const Instruction&) {}
  virtual void close_range() {}
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

enum class KernelPath { automatic, volta };  // volta: what a GPU of sm_70 would run, on any GPU
struct CudaOptions {
  int local_rank = 0;  // among the ranks of this machine; picks GPU local_rank modulo their number
  std::optional<size_t> memory_limit_bytes;  // counts what the driver and its libraries hold too
  DType working = DType::f32;                // refused where the GPU lacks it
  bool tf32 = false;                         // f32 products may round their factors to TF32
  KernelPath kernels = KernelPath::automatic;
  // Where the choices of matrix-product algorithms are kept, so that a resumed run makes the same
  // ones and gives the same bits; empty: nowhere.
  std::string tuning_file;
};
// cuda_kernels/ or its twin src/device/no_cuda.cpp, whichever was linked.
bool cuda_is_built();
// Error(bad_input) when built without CUDA, or where there is no such GPU or driver.
std::unique_ptr<Device> make_cuda_device(const CudaOptions& options);

}  // namespace voltapile
