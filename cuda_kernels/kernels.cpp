#include "kernels.hpp"

#include "gemm.hpp"

namespace voltapile::cuda {

CudaKernels::CudaKernels(Context& context)
    : context_(context), products_(std::make_unique<MatrixProducts>(context)) {}

CudaKernels::~CudaKernels() = default;

}  // namespace voltapile::cuda
