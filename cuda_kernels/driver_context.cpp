#include <map>
#include <mutex>

#include <cuda.h>

#include "context.hpp"
#include "driver.hpp"

namespace voltapile::cuda {
namespace {

void check(CUresult code, const char* call) {
  if (code == CUDA_SUCCESS) return;
  const char* why = nullptr;
  driver_function<CUresult (*)(CUresult, const char**)>("cuGetErrorString")(code, &why);
  throw Error(
      code == CUDA_ERROR_OUT_OF_MEMORY ? ExitCode::does_not_fit : ExitCode::failure,
      format("{}: {} ({})", call, why == nullptr ? "unknown" : why, static_cast<int>(code)));
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
          "cuCtxCreate, a context for one more rank of this process on the GPU");
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
