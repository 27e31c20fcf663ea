// What both directions of attention on sm_90a share.
#pragma once
#include "hopper.cuh"

namespace voltapile::cuda {

#if VP_HAS_WGMMA
// A head of a sample: number `index` of the B * H of o.
struct HopperHead {
  template <class Operands>
  __device__ __forceinline__ HopperHead(const Operands& o, int index)
      : b(index / o.heads), h(index % o.heads), length(o.lengths ? o.lengths[b] : o.tokens) {}
  int b, h;
  int length;  // tokens that are no padding
};
#endif

}  // namespace voltapile::cuda
