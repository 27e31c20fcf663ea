#include "context.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include "voltapile/base/units.hpp"

namespace voltapile::cuda {
namespace {

constexpr size_t kAlignment = 256, kPage = 4096;

std::string text_of(size_t bytes) { return show_bytes(static_cast<double>(bytes)); }

// The little of NVML's C interface that is used here: it comes with the driver, so it is opened at
// run time, and its header with neither.
using nvmlDevice_t = struct nvmlDevice_st*;
struct nvmlMemory_t {
  unsigned long long total, free, used;  // bytes
};
struct nvmlProcessInfo_t {
  unsigned int pid;
  unsigned long long used;  // bytes
  unsigned int gpu_instance, compute_instance;
};
constexpr int kNvmlSuccess = 0;

class Nvml {
 public:
  static Nvml* instance() {
    static Nvml nvml;
    return nvml.ready_ ? &nvml : nullptr;
  }
  size_t used_bytes(const std::string& bus_id) const {
    nvmlDevice_t device;
    nvmlMemory_t memory;
    if (by_bus_id_(bus_id.c_str(), &device) != kNvmlSuccess) return 0;
    return memory_info_(device, &memory) == kNvmlSuccess ? memory.used : 0;
  }
  // Of this process alone; empty where NVML cannot tell (a container hides process numbers).
  std::optional<size_t> own_bytes(const std::string& bus_id) const {
    nvmlDevice_t device;
    std::array<nvmlProcessInfo_t, 256> processes;
    auto count = static_cast<unsigned int>(processes.size());
    if (by_bus_id_(bus_id.c_str(), &device) != kNvmlSuccess ||
        processes_(device, &count, processes.data()) != kNvmlSuccess)
      return {};
    const auto self = static_cast<unsigned int>(getpid());
    for (const nvmlProcessInfo_t& process : std::span(processes).first(count))
      if (process.pid == self && process.used != ~0ULL) return process.used;
    return {};
  }

 private:
  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto find = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    int (*start)() = nullptr;
    ready_ = find(start, "nvmlInit_v2") && find(by_bus_id_, "nvmlDeviceGetHandleByPciBusId_v2") &&
             find(memory_info_, "nvmlDeviceGetMemoryInfo") &&
             find(processes_, "nvmlDeviceGetComputeRunningProcesses_v3") && start() == kNvmlSuccess;
  }
  bool ready_ = false;
  int (*by_bus_id_)(const char*, nvmlDevice_t*) = nullptr;
  int (*memory_info_)(nvmlDevice_t, nvmlMemory_t*) = nullptr;
  int (*processes_)(nvmlDevice_t, unsigned int*, nvmlProcessInfo_t*) = nullptr;
};

Gpu find_gpu(const CudaOptions& options) {
  // A lane may wait for host work that waits for another lane, of this rank or, where ranks are
  // threads, of another: lanes must not share hardware queues, of which the default is 8. Read by
  // the driver when it starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess || count == 0) {
    throw Error(ExitCode::bad_input,
                format("the deck asks for run.device = \"cuda\" and this machine has no usable GPU "
                       "({}): run where one is, or set run.device = \"cpu\"",
                       code == cudaSuccess ? "none was found" : cudaGetErrorString(code)));
  }
  Gpu gpu;
  gpu.ordinal = options.local_rank % count;
  cudaDeviceProp properties;
  VP_CUDA(cudaGetDeviceProperties(&properties, gpu.ordinal));
  gpu.name = properties.name;
  gpu.sm = 10 * properties.major + properties.minor;
  gpu.multiprocessors = properties.multiProcessorCount;
  gpu.shared_bytes = properties.sharedMemPerBlockOptin;
  gpu.total_bytes = properties.totalGlobalMem;
  char bus_id[32];
  VP_CUDA(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), gpu.ordinal));
  gpu.bus_id = bus_id;
  if (gpu.sm < 70) {
    throw Error(ExitCode::bad_input,
                format("{} is of compute capability {}.{}: voltapile's kernels need 7.0 or later",
                       gpu.name, gpu.sm / 10, gpu.sm % 10));
  }
  return gpu;
}

// Before memory is freed, which must not throw: what a GPU that has failed held goes with the
// process.
void enter_to_free(const DriverContext& context) noexcept {
  try {
    context.enter();
  } catch (const Error&) {}
}

}  // namespace

void throw_cuda(cudaError_t code, const char* call) {
  throw Error(code == cudaErrorMemoryAllocation ? ExitCode::does_not_fit : ExitCode::failure,
              format("{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code)));
}

size_t used_bytes_of(const std::string& bus_id) {
  const Nvml* nvml = Nvml::instance();
  return nvml == nullptr ? 0 : nvml->used_bytes(bus_id);
}

struct Memory::State {
  Gpu gpu;
  std::shared_ptr<const DriverContext> driver;
  std::optional<size_t> limit;
  size_t used_before = 0;
  mutable std::mutex mutex;
  std::map<std::string, size_t, std::less<>> by_name;
  size_t allocated = 0, overhead = 0;
  size_t kernels = 0;  // of what is allocated

  // With the mutex held. What holds the memory, largest first.
  std::string holders() const {
    std::vector<std::pair<size_t, std::string>> rows = {{overhead, "driver and libraries"}};
    for (const auto& [name, bytes] : by_name)
      if (bytes > 0) rows.emplace_back(bytes, name);
    std::sort(rows.rbegin(), rows.rend());
    std::string text;
    for (const auto& [bytes, name] : rows) text += format("\n  {:>10}  {}", text_of(bytes), name);
    return text;
  }
  void check(size_t more, std::string_view what) const {
    if (!limit || overhead + allocated + more <= *limit) return;
    throw Error(
        ExitCode::does_not_fit,
        format("{} needs {} more on {}, and memory.device_limit leaves {} of {}. Held:{}", what,
               text_of(more), gpu.name, text_of(*limit - std::min(*limit, overhead + allocated)),
               text_of(*limit), holders()));
  }
};

Memory::Memory(const Gpu& gpu, std::shared_ptr<const DriverContext> context,
               std::optional<size_t> limit_bytes, size_t used_before_bytes)
    : state_(std::make_shared<State>()) {
  state_->driver = std::move(context);
  state_->gpu = gpu;
  state_->limit = limit_bytes;
  state_->used_before = used_before_bytes;
}

void Memory::measure_overhead(std::string_view what) {
  const Nvml* nvml = Nvml::instance();
  const std::optional<size_t> own =
      nvml == nullptr ? std::nullopt : nvml->own_bytes(state_->gpu.bus_id);
  const size_t used = own ? *own : used_bytes_of(state_->gpu.bus_id);
  const std::lock_guard lock(state_->mutex);
  const size_t known = state_->allocated + (own ? 0 : state_->used_before);
  state_->overhead = used > known ? used - known : 0;
  state_->check(0, what);
}

Buffer Memory::allocate_for_kernels(size_t bytes, std::string_view what) {
  Buffer buffer = allocate(bytes, what);
  const std::lock_guard lock(state_->mutex);
  state_->kernels += bytes;
  return buffer;
}

Buffer Memory::allocate(size_t bytes, std::string_view what) {
  const std::lock_guard lock(state_->mutex);
  state_->check(bytes, what);
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  void* data = nullptr;
  if (const cudaError_t code = cudaMalloc(&data, rounded); code != cudaSuccess) {
    cudaGetLastError();
    if (code != cudaErrorMemoryAllocation) throw_cuda(code, "cudaMalloc");
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error(
        ExitCode::does_not_fit,
        format("{} needs {} more on {}, which has {} of {} left. Held by this rank:{}", what,
               text_of(bytes), state_->gpu.name, text_of(free), text_of(total), state_->holders()));
  }
  // Waits for itself alone: another rank of this process may share the GPU, and its lanes may wait
  // for this one.
  VP_CUDA(cudaMemsetAsync(data, 0xff, rounded, cudaStreamPerThread));
  VP_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
  state_->allocated += bytes;
  state_->by_name[std::string(what)] += bytes;
  return Buffer(data, bytes, [state = state_, bytes, what = std::string(what)](void* p) {
    enter_to_free(*state->driver);
    cudaFree(p);
    const std::lock_guard lock(state->mutex);
    state->allocated -= bytes;
    state->by_name[what] -= bytes;
  });
}

// Plain mappings, registered: the driver's own pinned allocator rounds large blocks up.
Buffer Memory::allocate_host(size_t bytes, std::string_view what) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  void* data = mmap(nullptr, rounded, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const auto refuse = [&](const char* why) {
    throw Error(ExitCode::does_not_fit,
                format("{} needs {} of pinned host memory: {} (ulimit -l, or a smaller "
                       "memory.host_limit)",
                       what, text_of(bytes), why));
  };
  if (data == MAP_FAILED) refuse(std::strerror(errno));
  std::memset(data, 0xff, rounded);
  const cudaError_t code =
      cudaHostRegister(data, rounded, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (code != cudaSuccess) {
    cudaGetLastError();
    munmap(data, rounded);
    refuse(cudaGetErrorString(code));
  }
  return Buffer(data, bytes, [state = state_, rounded](void* p) {
    enter_to_free(*state->driver);
    cudaHostUnregister(p);
    munmap(p, rounded);
  });
}

size_t Memory::allocated_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->allocated - state_->kernels;
}
size_t Memory::overhead_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->overhead + state_->kernels;
}

Context::Context(const CudaOptions& options) : options_(options), gpu_(find_gpu(options)) {
  const size_t used_before = used_bytes_of(gpu_.bus_id);
  driver_ = std::make_shared<const DriverContext>(gpu_.ordinal);
  driver_->enter();
  volta_ = gpu_.sm < 80 || options.kernels == KernelPath::volta || loaded_architecture() < 80;
  if (options.working == DType::bf16 && gpu_.sm < 80) {
    throw Error(ExitCode::bad_input,
                format("precision.type = \"bf16\", and {} (compute capability {}.{}) has no bf16 "
                       "arithmetic: set precision.type = \"f16\"",
                       gpu_.name, gpu_.sm / 10, gpu_.sm % 10));
  }
  memory_ = std::make_unique<Memory>(gpu_, driver_, options.memory_limit_bytes, used_before);
}

Context::~Context() = default;

std::byte* Context::scratch(Stream& stream) {
  Buffer& buffer = lanes_[&stream].scratch;
  if (buffer.data() == nullptr)
    buffer = memory_->allocate_for_kernels(kScratchBytes, "kernel scratch");
  return buffer.data();
}
std::byte* Context::workspace(Stream& stream) {
  Buffer& buffer = lanes_[&stream].workspace;
  if (buffer.data() == nullptr)
    buffer = memory_->allocate_for_kernels(kWorkspaceBytes, "product workspace");
  return buffer.data();
}

const std::byte* Context::resident(std::span<const std::byte> table) {
  auto& known = tables_[{table.data(), table.size()}];
  for (const auto& [contents, buffer] : known)
    if (std::equal(contents.begin(), contents.end(), table.begin(), table.end()))
      return buffer.data();
  Buffer buffer = memory_->allocate_for_kernels(table.size(), "tables");
  // A plain cudaMemcpy of pageable memory returns before the bytes have arrived.
  VP_CUDA(cudaMemcpyAsync(buffer.data(), table.data(), table.size(), cudaMemcpyHostToDevice,
                          cudaStreamPerThread));
  VP_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
  known.emplace_back(std::vector<std::byte>(table.begin(), table.end()), std::move(buffer));
  return known.back().second.data();
}

void Context::fail(std::exception_ptr why) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(why);
  failed_ = true;
}
std::exception_ptr Context::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace voltapile::cuda
