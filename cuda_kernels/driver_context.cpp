#include <map>
#include <mutex>

#include <cuda.h>
#include <dlfcn.h>

#include "context.hpp"

namespace voltapile::cuda {
namespace {

// The driver is opened when there is one, never by the linker.
template <class Function>
Function driver_function(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  VP_CHECK(found != nullptr, "the CUDA driver has no {}", name);
  return reinterpret_cast<Function>(found);
}

void check(CUresult code, const char* call) {
  if (code == CUDA_SUCCESS) return;
  throw Error(code == CUDA_ERROR_OUT_OF_MEMORY ? ExitCode::does_not_fit : ExitCode::failure,
              format("{} failed with {}", call, static_cast<int>(code)));
}

struct Users {
  std::mutex mutex;
  std::map<int, bool> primary_taken;  // by GPU
};
Users& users() {
  static auto* instance = new Users;  // buffers of static lifetime may go last
  return *instance;
}

}  // namespace

DriverContext::DriverContext(int ordinal) : ordinal_(ordinal) {
  const std::lock_guard lock(users().mutex);
  bool& taken = users().primary_taken[ordinal];
  if (taken) {
    CUdevice device{};
    check(driver_function<CUresult (*)(CUdevice*, int)>("cuDeviceGet")(&device, ordinal),
          "cuDeviceGet");
    CUcontext context = nullptr;
    check(driver_function<CUresult (*)(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2")(
              &context, 0, device),
          "cuCtxCreate");
    own_ = context;
    return;
  }
  VP_CUDA(cudaSetDevice(ordinal));
  VP_CUDA(cudaFree(nullptr));  // the context
  taken = true;
}

DriverContext::~DriverContext() {
  const std::lock_guard lock(users().mutex);
  if (own_ == nullptr) users().primary_taken[ordinal_] = false;
  else driver_function<CUresult (*)(CUcontext)>("cuCtxDestroy_v2")(static_cast<CUcontext>(own_));
}

void DriverContext::enter() const {
  if (own_ == nullptr) VP_CUDA(cudaSetDevice(ordinal_));
  else
    check(driver_function<CUresult (*)(CUcontext)>("cuCtxSetCurrent")(static_cast<CUcontext>(own_)),
          "cuCtxSetCurrent");
}

}  // namespace voltapile::cuda
