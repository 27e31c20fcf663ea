// What both directions of attention on sm_90a share.
#pragma once
#include "hopper.cuh"

namespace voltapile::cuda {

// Of sm_90 (CUDA C++ Programming Guide, "Compute Capabilities"): 32-bit registers of a
// multiprocessor, and shared memory that a thread block can have.
inline constexpr int kMultiprocessorRegisters = 64 * 1024, kMostSharedBytes = 227 * 1024;

#if VP_HAS_WGMMA
// A head of a sample: number `index` of the B * H of o.
struct HopperHead {
  template <class Operands>
  __device__ __forceinline__ HopperHead(const Operands& o, int index)
      : b(index / o.heads), h(index % o.heads), length(o.lengths ? o.lengths[b] : o.tokens) {}
  int b, h;
  int length;  // tokens that are no padding
};

// What the warps of a block do: one thread runs prepare(), which initialises the barriers; then
// every warp of the first warpgroup runs copy(warp), with few registers, and every other warpgroup
// compute(warpgroup), with many, counted from the second.
template <class S, class Prepare, class Copy, class Compute>
__device__ __forceinline__ void run_roles(const Prepare& prepare, const Copy& copy,
                                          const Compute& compute) {
  // From a shuffle, so that the compiler knows that a warp's threads go one way.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    prepare();
    barriers_ready();
  }
  __syncthreads();
  if (warp < 4) {
    leave_registers<S::kCopierRegisters>();
    copy(warp);
  } else {
    take_registers<S::kRegisters>();
    compute(warp / 4 - 1);
  }
}

// Has a tile's columns of 64 numbers copied, kColumnBytes apart; `at`: copy_box()'s coordinates but
// for the dim.
template <class S, int kColumnBytes, class... At>
__device__ __forceinline__ void copy_columns(const CUtensorMap& map, uint32_t tile,
                                             uint32_t barrier, At... at) {
#pragma unroll
  for (int c = 0; c < S::kColumns; ++c)
    copy_box(tile + c * kColumnBytes, map, barrier, 64 * c, at...);
}
#endif

}  // namespace voltapile::cuda
