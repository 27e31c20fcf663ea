#include "stream.hpp"

#include <chrono>

#include <cuda.h>

namespace voltapile::cuda {
namespace {

// The driver is opened by the runtime when there is one, never by the linker.
using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
WaitValue wait_value() {
  static const WaitValue function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    VP_CUDA(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000,
                                             cudaEnableDefault, &result));
#else
    VP_CUDA(cudaGetDriverEntryPoint("cuStreamWaitValue32", &found, cudaEnableDefault, &result));
#endif
    VP_CHECK(found != nullptr, "the CUDA driver has no cuStreamWaitValue32");
    return reinterpret_cast<WaitValue>(found);
  }();
  return function;
}

std::atomic_ref<uint32_t> number_in(const Buffer& buffer) {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(buffer.data()));
}

}  // namespace

CudaStream::CudaStream(Context& context, Lane lane) : context_(context) {
  // Transfers and reductions are short and others wait for them: they go before compute.
  int least = 0, greatest = 0;
  VP_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  VP_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                       lane == Lane::compute ? least : greatest));
  finished_ = context.memory().allocate_host(sizeof(uint32_t), "lane flags");
  number_in(finished_) = 0;
}

CudaStream::~CudaStream() {
  {
    const std::lock_guard lock(host_mutex_);
    stopping_ = true;
  }
  arrived_.notify_all();
  if (worker_.joinable()) worker_.join();
  cudaStreamSynchronize(stream_);
  for (cudaEvent_t event : pending_) cudaEventDestroy(event);
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

cudaEvent_t CudaStream::take_event() {
  if (!free_.empty()) {
    const cudaEvent_t event = free_.back();
    free_.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  VP_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void CudaStream::retire() {
  while (!pending_.empty()) {
    const cudaError_t code = cudaEventQuery(pending_.front());
    if (code == cudaErrorNotReady) return;
    if (code != cudaSuccess) throw_cuda(code, "a kernel or copy enqueued earlier");
    free_.push_back(pending_.front());
    pending_.pop_front();
    ++completed_;
  }
}

Event CudaStream::record() {
  const std::lock_guard lock(mutex_);
  retire();
  const cudaEvent_t event = take_event();
  VP_CUDA(cudaEventRecord(event, stream_));
  pending_.push_back(event);
  return {this, ++recorded_};
}

void CudaStream::wait(Event event) {
  auto& other = static_cast<CudaStream&>(*event.stream);
  if (&other == this) return;
  const std::lock_guard lock(other.mutex_);
  if (event.ticket <= other.completed_) return;
  VP_CUDA(cudaStreamWaitEvent(stream_, other.pending_[event.ticket - other.completed_ - 1], 0));
}

bool CudaStream::done(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  retire();
  return ticket <= completed_;
}

// The stream waits for a number that the host thread writes after the work; the host thread waits
// for an event. A callback of the driver's would not do: all streams share its one thread, and work
// of one lane may wait for another lane's.
void CudaStream::run_on_host(std::function<void()> work) {
  cudaEvent_t reached = nullptr;
  {
    const std::lock_guard lock(mutex_);
    reached = take_event();
  }
  VP_CUDA(cudaEventRecord(reached, stream_));
  void* flag = nullptr;
  VP_CUDA(cudaHostGetDevicePointer(&flag, finished_.data(), 0));
  uint32_t number = 0;
  {
    const std::lock_guard lock(host_mutex_);
    number = ++started_;
    tasks_.push_back({reached, std::move(work), number});
    if (!worker_.joinable()) worker_ = std::thread([this] { this->work(); });
  }
  arrived_.notify_one();
  const CUresult code =
      wait_value()(stream_, reinterpret_cast<CUdeviceptr>(flag), number, CU_STREAM_WAIT_VALUE_GEQ);
  VP_CHECK(code == CUDA_SUCCESS, "cuStreamWaitValue32 failed with {}", static_cast<int>(code));
}

bool CudaStream::host_work_done() const { return number_in(finished_) == started_; }

void CudaStream::work() {
  try {
    context_.enter();
  } catch (...) { context_.fail(std::current_exception()); }
  std::unique_lock lock(host_mutex_);
  while (true) {
    arrived_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    try {
      cudaError_t code = cudaErrorNotReady;
      for (int tries = 0; (code = cudaEventQuery(task.reached)) == cudaErrorNotReady; ++tries) {
        if (tries > 200) std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      VP_CUDA(code);
      if (!context_.failed()) task.work();
    } catch (...) { context_.fail(std::current_exception()); }
    task.work = nullptr;
    {
      const std::lock_guard events(mutex_);
      free_.push_back(task.reached);
    }
    number_in(finished_).store(task.number, std::memory_order_release);
    lock.lock();
  }
}

}  // namespace voltapile::cuda
