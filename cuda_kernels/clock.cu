// Time on the GPU, and what code was loaded there.
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

void mark_time(const GpuClock& clock, double* seconds, cudaStream_t stream) {
  mark_kernel<<<1, 1, 0, stream>>>(seconds, clock.offset_seconds);
  VP_LAUNCHED();
}

// Of several round trips the shortest brackets the GPU's reading most narrowly.
GpuClock calibrate_clock(Context& context, cudaStream_t stream) {
  const Buffer reading = context.memory().allocate_host(sizeof(double), "clock");
  auto* ticks = reinterpret_cast<double*>(reading.data());
  GpuClock clock;
  double shortest = 1e9;
  for (int i = 0; i < 20; ++i) {
    const double before = now_seconds();
    mark_time({}, ticks, stream);
    VP_CUDA(cudaStreamSynchronize(stream));
    const double after = now_seconds();
    if (i == 0 || after - before >= shortest) continue;
    shortest = after - before;
    clock.offset_seconds = (before + after) / 2 - *ticks;
  }
  return clock;
}

}  // namespace voltapile::cuda
