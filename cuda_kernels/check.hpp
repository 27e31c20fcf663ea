// Every CUDA call is checked; a failure says which call, and what the library said.
#pragma once
#include <cuda_runtime_api.h>

#include "voltapile/base/error.hpp"

namespace voltapile::cuda {

[[noreturn]] void throw_cuda(cudaError_t code, const char* call);

}  // namespace voltapile::cuda

#define VP_CUDA(call)                                                            \
  do {                                                                           \
    if (const cudaError_t vp_code = (call); vp_code != cudaSuccess) [[unlikely]] \
      ::voltapile::cuda::throw_cuda(vp_code, #call);                             \
  } while (false)
