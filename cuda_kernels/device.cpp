#include <chrono>
#include <optional>
#include <unordered_map>
#include <utility>

#include <cublasLt.h>
#include <nccl.h>

#include "voltapile/base/clock.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/device/host/memory.hpp"

#include "kernels.hpp"
#include "ranges.hpp"
#include "stream.hpp"

namespace voltapile::cuda {
namespace {

// One kernel, or a graph of many, that is launched again and again.
struct Recorded {
  bool met = false;  // has run once: lazily loaded code is there, algorithms are chosen
  cudaGraphExec_t graph = nullptr;
};

size_t kernels_of(cudaGraph_t graph) {
  size_t count = 0;
  VP_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  VP_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  size_t kernels = 0;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    VP_CUDA(cudaGraphNodeGetType(node, &type));
    kernels += type == cudaGraphNodeTypeKernel;
  }
  return kernels;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaOptions& options) : context_(options), kernels_(context_) {
    for (Lane lane : {Lane::compute, Lane::dp}) {
      context_.scratch(stream(lane));
      context_.workspace(stream(lane));
    }
    clock_.emplace(context_);
    context_.memory().measure_overhead("the CUDA context");
  }

  ~CudaDevice() override {
    fail("the device is gone");  // host work that has not started is dropped
    for (auto& [key, recorded] : recorded_)
      if (recorded.graph != nullptr) cudaGraphExecDestroy(recorded.graph);
    for (auto& stream : streams_) stream.reset();
  }

  std::string describe() const override {
    const Gpu& gpu = context_.gpu();
    return format("cuda, {} (sm_{}, {}{})", gpu.name, gpu.sm,
                  show_bytes(static_cast<double>(gpu.total_bytes)),
                  context_.volta() && gpu.sm >= 80 ? ", kernels of sm_70" : "");
  }

  void open_range(const Instruction& instruction) override { ranges_.open(instruction); }
  void close_range() override { ranges_.close(); }

  std::string pci_address() const override { return context_.gpu().bus_id; }
  std::vector<std::pair<std::string, std::string>> versions() const override {
    int driver = 0, runtime = 0, nccl = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    ncclGetVersion(&nccl);
    return {{"CUDA driver", format("{}.{}", driver / 1000, driver % 1000 / 10)},
            {"CUDA", format("{}.{}", runtime / 1000, runtime % 1000 / 10)},
            {"cuBLASLt", format("{}", cublasLtGetVersion())},
            {"NCCL", format("{}.{}.{}", nccl / 10000, nccl % 10000 / 100, nccl % 100)}};
  }

  Buffer allocate(size_t bytes, std::string_view what) override {
    context_.enter();
    return context_.memory().allocate(bytes, what);
  }
  Buffer allocate_host(size_t bytes, std::string_view what) override {
    context_.enter();
    return context_.memory().allocate_host(bytes, what);
  }
  Buffer allocate_compute(size_t bytes, std::string_view what, ThreadPool& pool) override {
    return host::compute_memory(bytes, what, pool);
  }
  size_t allocated_bytes() const override { return context_.memory().allocated_bytes(); }
  size_t overhead_bytes() const override { return context_.memory().overhead_bytes(); }

  // Made when it is first asked for: a GPU has few hardware queues, and streams that share one wait
  // for each other.
  Stream& stream(Lane lane) override {
    auto& stream = streams_[static_cast<size_t>(lane)];
    if (!stream) {
      context_.enter();
      stream = std::make_unique<CudaStream>(context_, lane);
    }
    return *stream;
  }
  Event record(Stream& stream) override { return on(stream).record(); }
  void wait(Stream& stream, Event event) override {
    if (event.stream != nullptr) on(stream).wait(event);
  }
  void wait_on_host(Event event) override {
    for (int tries = 0;; ++tries) {
      if (context_.failed()) std::rethrow_exception(context_.failure());
      if (event.stream == nullptr || on(*event.stream).done(event.ticket)) break;
      if (tries > 2000) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (context_.failed()) std::rethrow_exception(context_.failure());
    // Graphs, and code that was loaded at its first use, take memory of the driver's.
    if (std::exchange(driver_took_memory_, false))
      context_.memory().measure_overhead("recorded work");
  }
  void copy(void* dst, const void* src, size_t bytes, Stream& stream) override {
    if (bytes > 0) VP_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, handle_of(stream)));
  }
  void mark(Stream& stream, double* seconds) override { clock_->mark(seconds, handle_of(stream)); }
  void align_clock() override { clock_->align(); }

  // The first time, libraries load code and choose algorithms, which a recording must not hold; the
  // second time is recorded.
  void repeat(Stream& stream, uint64_t key, const std::function<void()>& enqueue) override {
    Recorded& recorded = recorded_[key];
    if (!recorded.met) {
      enqueue();
      recorded.met = true;
      driver_took_memory_ = true;
      return;
    }
    if (recorded.graph == nullptr) {
      cudaGraph_t graph = nullptr;
      VP_CUDA(cudaStreamBeginCapture(handle_of(stream), cudaStreamCaptureModeThreadLocal));
      try {
        enqueue();
      } catch (...) {
        cudaStreamEndCapture(handle_of(stream), &graph);
        throw;
      }
      VP_CUDA(cudaStreamEndCapture(handle_of(stream), &graph));
      ++recordings_.count;
      recordings_.kernels += kernels_of(graph);
      VP_CUDA(cudaGraphInstantiate(&recorded.graph, graph, 0));
      VP_CUDA(cudaGraphDestroy(graph));
      VP_CUDA(cudaGraphUpload(recorded.graph, handle_of(stream)));
      driver_took_memory_ = true;
    }
    VP_CUDA(cudaGraphLaunch(recorded.graph, handle_of(stream)));
  }

  Recordings recordings() const override { return recordings_; }

  Kernels& kernels() override { return kernels_; }
  void fail(const std::string& why) override {
    context_.fail(std::make_exception_ptr(Error(ExitCode::failure, why)));
  }
  void wait_until_idle() override {
    for (auto& stream : streams_) {
      if (!stream) continue;
      const auto pause = [] { std::this_thread::sleep_for(std::chrono::microseconds(50)); };
      try {
        const Event last = stream->record();
        while (!stream->done(last.ticket)) pause();
      } catch (const Error&) {
        context_.fail(std::current_exception());  // a GPU that has failed runs nothing more
      }
      while (!stream->host_work_done()) pause();
    }
  }
  Context& context() { return context_; }

 private:
  static CudaStream& on(Stream& stream) { return static_cast<CudaStream&>(stream); }

  Context context_;
  CudaKernels kernels_;
  std::array<std::unique_ptr<CudaStream>, kLaneCount> streams_;
  std::unordered_map<uint64_t, Recorded> recorded_;
  bool driver_took_memory_ = false;
  Recordings recordings_;
  std::optional<GpuClock> clock_;
  Ranges ranges_;
};

}  // namespace

Context* context_of(Device& device) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  return cuda == nullptr ? nullptr : &cuda->context();
}

}  // namespace voltapile::cuda

namespace voltapile {

bool cuda_is_built() { return true; }

std::unique_ptr<Device> make_cuda_device(const CudaOptions& options) {
  return std::make_unique<cuda::CudaDevice>(options);
}

}  // namespace voltapile
