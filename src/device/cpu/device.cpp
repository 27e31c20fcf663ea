#include <atomic>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#include "voltapile/base/clock.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/device/host/memory.hpp"

#include "kernels.hpp"
#include "stream.hpp"

namespace voltapile::cpu {
namespace {

constexpr size_t kAlignment = 256, kLargePage = size_t{1} << 21;

#ifdef VOLTAPILE_ONEDNN
constexpr const char* kProducts = "oneDNN";
#else
constexpr const char* kProducts = "Eigen";
#endif
#if defined(__AVX512F__)
constexpr const char* kInstructions = "built for AVX-512";
#elif defined(__AVX2__)
constexpr const char* kInstructions = "built for AVX2";
#else
constexpr const char* kInstructions = "built for any CPU";
#endif

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads), kernels_(threads) {}

  // Work that has not started is dropped: its buffers may be gone already.
  ~CpuDevice() override {
    {
      std::lock_guard lock(monitor_.mutex);
      monitor_.stopping = true;
      monitor_.wake_all();
    }
    for (auto& lane : monitor_.lanes)
      if (lane) lane->join();
  }

  std::string describe() const override {
    return format("cpu, {} {}", threads_, threads_ == 1 ? "thread" : "threads");
  }

  std::vector<std::pair<std::string, std::string>> versions() const override {
    return {{"CPU kernels", format("{}, {}", kProducts, kInstructions)}};
  }

  Buffer allocate(size_t bytes, std::string_view what) override {
    // Large buffers in large pages, where the system grants them: fewer misses of the TLB.
    const size_t alignment = bytes >= 2 * kLargePage ? kLargePage : kAlignment;
    const size_t rounded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    void* data = std::aligned_alloc(alignment, rounded);
    if (!data)
      throw Error(ExitCode::does_not_fit,
                  format("{} needs {} of host memory, which the system refused ({} are in use by "
                         "this rank)",
                         what, show_bytes(static_cast<double>(bytes)),
                         show_bytes(static_cast<double>(*allocated_))));
    if (alignment == kLargePage) madvise(data, rounded, MADV_HUGEPAGE);
    std::memset(data, 0xff, rounded);
    allocated_->fetch_add(bytes);
    return Buffer(data, bytes, [counter = allocated_, bytes](void* p) {
      counter->fetch_sub(bytes);
      std::free(p);
    });
  }
  Buffer allocate_host(size_t bytes, std::string_view what) override {
    return allocate(bytes, what);
  }
  Buffer allocate_compute(size_t bytes, std::string_view what, ThreadPool& pool) override {
    return host::compute_memory(bytes, what, pool);
  }
  size_t allocated_bytes() const override { return *allocated_; }

  Stream& stream(Lane lane) override {
    std::lock_guard lock(monitor_.mutex);
    auto& entry = monitor_.lanes[static_cast<size_t>(lane)];
    if (!entry) entry = std::make_unique<CpuStream>(monitor_);
    return *entry;
  }
  Event record(Stream& stream) override { return on(stream).record(); }
  void wait(Stream& stream, Event event) override { on(stream).wait(event); }
  void wait_on_host(Event event) override {
    if (event.stream) return on(*event.stream).wait_on_host(event);
    std::lock_guard lock(monitor_.mutex);
    if (monitor_.failure) std::rethrow_exception(monitor_.failure);
  }
  void copy(void* dst, const void* src, size_t bytes, Stream& stream) override {
    on(stream).enqueue([=] { std::memcpy(dst, src, bytes); });
  }
  void mark(Stream& stream, double* seconds) override {
    // A watch may look at it at any time.
    on(stream).enqueue([seconds] {
      std::atomic_ref<double>(*seconds).store(now_seconds(), std::memory_order_relaxed);
    });
  }
  void repeat(Stream&, uint64_t, const std::function<void()>& enqueue) override { enqueue(); }
  Kernels& kernels() override { return kernels_; }
  void wait_until_idle() override {
    for (auto& lane : monitor_.lanes)
      if (lane) lane->wait_until_idle();
  }
  void fail(const std::string& why) override {
    std::lock_guard lock(monitor_.mutex);
    monitor_.fail(std::make_exception_ptr(Error(ExitCode::failure, why)));
  }

 private:
  int threads_;
  // Buffers may outlive the device.
  std::shared_ptr<std::atomic<size_t>> allocated_ = std::make_shared<std::atomic<size_t>>(0);
  CpuKernels kernels_;
  Monitor monitor_;
};

}  // namespace
}  // namespace voltapile::cpu

namespace voltapile {
std::unique_ptr<Device> make_cpu_device(int threads) {
  return std::make_unique<cpu::CpuDevice>(threads);
}
}  // namespace voltapile
