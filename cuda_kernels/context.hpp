// What the parts of one CUDA device share: the GPU, its memory and the lanes' scratch.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "voltapile/device/device.hpp"

#include "check.hpp"

namespace voltapile::cuda {

struct Gpu {
  int ordinal = 0;
  std::string name;
  int sm = 0;  // 90 for compute capability 9.0
  int multiprocessors = 0;
  size_t shared_bytes = 0;  // most that one block may have
  size_t total_bytes = 0;
  std::string bus_id;
};

// The driver's context of one device. The first device on a GPU in a process takes the primary one;
// another beside it (ranks as threads, in tests) gets one of its own: the driver waits for a whole
// context in many calls, and two ranks of one context would wait for each other.
class DriverContext {
 public:
  explicit DriverContext(int ordinal);
  ~DriverContext();
  DriverContext(const DriverContext&) = delete;
  DriverContext& operator=(const DriverContext&) = delete;
  void enter() const;  // makes it the calling thread's

 private:
  int ordinal_;
  void* own_ = nullptr;  // a CUcontext
};

// Counts what is allocated, by name, and keeps to the limit. Buffers hold it: they may outlive the
// device.
class Memory {
 public:
  Memory(const Gpu& gpu, std::shared_ptr<const DriverContext> context,
         std::optional<size_t> limit_bytes, size_t used_before_bytes);

  Buffer allocate(size_t bytes, std::string_view what);
  // What the kernels need for themselves, as long as the device lives: counted as overhead.
  Buffer allocate_for_kernels(size_t bytes, std::string_view what);
  Buffer allocate_host(size_t bytes, std::string_view what);
  size_t allocated_bytes() const;
  // What the driver, its libraries and the kernels hold for this process besides, as last measured.
  size_t overhead_bytes() const;
  // After libraries have taken memory of their own (NCCL): counts it, and checks the limit.
  void measure_overhead(std::string_view what);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Memory of the GPU in use by everybody, as the driver reports it; 0 where it does not.
size_t used_bytes_of(const std::string& bus_id);

class Context {
 public:
  explicit Context(const CudaOptions& options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const CudaOptions& options() const { return options_; }
  const Gpu& gpu() const { return gpu_; }
  Memory& memory() const { return *memory_; }
  // Makes this device's context the calling thread's.
  void enter() const { driver_->enter(); }
  // Whether kernels must be those of sm_70: the GPU is one, the option says so, or the code that
  // was loaded is.
  bool volta() const { return volta_; }

  // Temporary memory of one lane: contents last for one operation. kScratchBytes, 256-byte aligned.
  static constexpr size_t kScratchBytes = size_t{64} << 20;
  std::byte* scratch(Stream& stream);
  // The lane's memory for matrix-product algorithms.
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;
  std::byte* workspace(Stream& stream);
  // A copy of a host table on the device, made at its first use and kept. Tables are told apart by
  // address and contents.
  const std::byte* resident(std::span<const std::byte> table);
  template <class T>
  const T* resident(std::span<const T> table) {
    return reinterpret_cast<const T*>(resident(std::as_bytes(table)));
  }

  // First failure of the device; later ones are dropped.
  void fail(std::exception_ptr why);
  std::exception_ptr failure() const;
  bool failed() const { return failed_; }

 private:
  CudaOptions options_;
  Gpu gpu_;
  std::shared_ptr<const DriverContext> driver_;
  std::unique_ptr<Memory> memory_;
  bool volta_ = false;
  struct LaneMemory {
    Buffer scratch, workspace;
  };
  std::map<const Stream*, LaneMemory> lanes_;
  std::map<std::pair<const void*, size_t>, std::vector<std::pair<std::vector<std::byte>, Buffer>>>
      tables_;
  mutable std::mutex mutex_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_ = false;
};

// The compute capability that the loaded kernels were compiled for: 70 of compute_70 PTX, whatever
// the GPU is.
int loaded_architecture();

}  // namespace voltapile::cuda
