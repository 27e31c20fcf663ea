// The twin of cuda_kernels/: linked when the build has no CUDA.
#include "voltapile/base/error.hpp"
#include "voltapile/device/device.hpp"

namespace voltapile {

bool cuda_is_built() { return false; }

std::unique_ptr<Device> make_cuda_device(const CudaOptions&) {
  throw Error(
      ExitCode::bad_input,
      "this build has no CUDA, and the deck asks for it: set run.device = \"cpu\", or build "
      "with -Dcuda=enabled");
}

}  // namespace voltapile
