// Time on the GPU, and what code was loaded there.
#include <limits>

#include "voltapile/base/clock.hpp"

#include "launch.cuh"

namespace voltapile::cuda {
namespace {

// %globaltimer counts nanoseconds; the host buffer is mapped into the GPU.
__global__ void mark_kernel(double* seconds, double offset_seconds) {
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  *seconds = static_cast<double>(now) * 1e-9 + offset_seconds;
}

}  // namespace

int loaded_architecture() {
  cudaFuncAttributes attributes;
  VP_CUDA(cudaFuncGetAttributes(&attributes, mark_kernel));
  // PTX that the driver has compiled keeps its own version, below the binary's.
  return attributes.ptxVersion > 0 ? std::min(attributes.ptxVersion, attributes.binaryVersion)
                                   : attributes.binaryVersion;
}

GpuClock::GpuClock(Context& context)
    : reading_(context.memory().allocate_host(sizeof(double), "clock")) {
  int lowest = 0, highest = 0;
  VP_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  VP_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
  align();
}

GpuClock::~GpuClock() { cudaStreamDestroy(stream_); }

void GpuClock::mark(double* seconds, cudaStream_t stream) const {
  mark_kernel<<<1, 1, 0, stream>>>(seconds, offset_seconds_);
  VP_LAUNCHED();
}

// Of several round trips the shortest brackets the GPU's reading most narrowly.
void GpuClock::align() {
  auto* const ticks = reinterpret_cast<double*>(reading_.data());
  double shortest = std::numeric_limits<double>::infinity(), offset = 0;
  for (int i = 0; i < 20; ++i) {
    const double before = now_seconds();
    mark_kernel<<<1, 1, 0, stream_>>>(ticks, 0);
    VP_LAUNCHED();
    VP_CUDA(cudaStreamSynchronize(stream_));
    const double after = now_seconds();
    if (i == 0 || after - before >= shortest) continue;
    shortest = after - before;
    offset = (before + after) / 2 - *ticks;
  }
  offset_seconds_ = offset;
}

}  // namespace voltapile::cuda
