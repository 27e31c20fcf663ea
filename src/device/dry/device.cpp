#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include "voltapile/base/error.hpp"

#include "kernels.hpp"

namespace voltapile {
namespace dry {
namespace {

class DryStream final : public Stream {
 public:
  DryStream(Lane lane, DryCounters& counters)
      : lane_(static_cast<size_t>(lane)), counters_(counters) {}
  void run_on_host(std::function<void()>) override { ++counters_.host_calls[lane_]; }
  size_t lane() const { return lane_; }

 private:
  size_t lane_;
  DryCounters& counters_;
};

using Memory = std::map<std::string, AllocationCount>;

class DryDevice final : public Device {
 public:
  std::string describe() const override { return "dry (counts, computes nothing)"; }

  Buffer allocate(size_t bytes, std::string_view what) override {
    return take(bytes, counters_->device_memory[std::string(what)], counters_->device_bytes,
                counters_->peak_device_bytes);
  }
  // What the host reads and writes itself, a step's inputs and results, is small and real.
  Buffer allocate_host(size_t bytes, std::string_view what) override {
    void* real = bytes <= kRealHostBytes ? std::calloc(1, bytes) : nullptr;
    return take(bytes, counters_->host_memory[std::string(what)], counters_->host_bytes,
                counters_->peak_host_bytes, real);
  }
  Buffer allocate_compute(size_t bytes, std::string_view what, ThreadPool&) override {
    return allocate_host(bytes, what);
  }
  size_t allocated_bytes() const override { return counters_->device_bytes; }

  Stream& stream(Lane lane) override {
    auto& entry = streams_[static_cast<size_t>(lane)];
    if (!entry) entry = std::make_unique<DryStream>(lane, *counters_);
    return *entry;
  }
  Event record(Stream& stream) override { return {&stream, 0}; }
  void wait(Stream&, Event) override { check(); }
  void wait_on_host(Event) override { check(); }
  void copy(void*, const void*, size_t bytes, Stream& stream) override {
    const size_t lane = static_cast<DryStream&>(stream).lane();
    ++counters_->copies[lane];
    counters_->copied_bytes[lane] += static_cast<double>(bytes);
  }
  void mark(Stream&, double*) override {}
  void repeat(Stream&, uint64_t, const std::function<void()>& enqueue) override { enqueue(); }
  Kernels& kernels() override { return kernels_; }
  void wait_until_idle() override {}
  void fail(const std::string& why) override {
    if (!failed_) failed_ = why;
  }
  const DryCounters& counters() const { return *counters_; }

 private:
  Buffer take(size_t bytes, AllocationCount& entry, size_t& total, size_t& peak,
              void* real = nullptr) {
    ++entry.live;
    entry.bytes += bytes;
    entry.peak_bytes = std::max(entry.peak_bytes, entry.bytes);
    total += bytes;
    peak = std::max(peak, total);
    void* address = real != nullptr ? real : reinterpret_cast<void*>(next_address_);
    next_address_ += (bytes + 255) / 256 * 256 + 256;
    // The buffer may outlive the device; map entries keep their place.
    return Buffer(address, bytes, [keep = counters_, &entry, &total, bytes, real](void*) {
      std::free(real);
      --entry.live;
      entry.bytes -= bytes;
      total -= bytes;
    });
  }
  void check() const {
    if (failed_) throw Error(ExitCode::failure, *failed_);
  }

  std::shared_ptr<DryCounters> counters_ = std::make_shared<DryCounters>();
  DryKernels kernels_{*counters_};
  std::array<std::unique_ptr<DryStream>, kLaneCount> streams_;
  static constexpr size_t kRealHostBytes = 4096;
  // Far from any real mapping, and not canonical on x86-64: touching it is a fault at once.
  uintptr_t next_address_ = uintptr_t{1} << 56;
  std::optional<std::string> failed_;
};

}  // namespace
}  // namespace dry

double DryCounters::flops() const {
  double total = 0;
  for (const auto& [name, entry] : kernels) total += entry.flops;
  return total;
}

const DryCounters& dry_counters(const Device& device) {
  const auto* dry = dynamic_cast<const dry::DryDevice*>(&device);
  VP_CHECK(dry, "the counters of {} were asked for, which is not a dry device", device.describe());
  return dry->counters();
}

std::unique_ptr<Device> make_dry_device() { return std::make_unique<dry::DryDevice>(); }

}  // namespace voltapile
