// Tensor-core and asynchronous-copy instructions of sm_80 and later, as fused attention needs them.
// A matrix tile lies in shared memory in rows of kDim + 8 numbers: an odd number of 16-byte pieces,
// so that the eight rows of an ldmatrix fall into different banks. On sm_70 nothing here is called.
#pragma once
#include "launch.cuh"

namespace voltapile::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define VP_HAS_ASYNC_MMA 1
#else
#define VP_HAS_ASYNC_MMA 0
#endif

inline constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#if VP_HAS_ASYNC_MMA
// 16 bytes to shared memory, or zeros.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool wanted) {
  const int bytes = wanted ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy4(uint32_t to, const void* from, bool wanted) {
  const int bytes = wanted ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

using Fragment = uint32_t[4];
__device__ __forceinline__ void load_matrices(Fragment& r, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(Fragment& r, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// c (16 x 8) += a (16 x 16) b (16 x 8)
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const Fragment& a, uint32_t b0,
                                             uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Two numbers rounded to T, the first in the low half.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  uint32_t r;
  if constexpr (std::is_same_v<T, __half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// The left factor of a product from two neighbouring 16 x 8 results of another.
template <class T>
__device__ __forceinline__ void as_left_factor(Fragment& a, const float (&left)[4],
                                               const float (&right)[4]) {
  a[0] = pack_pair<T>(left[0], left[1]);
  a[1] = pack_pair<T>(left[2], left[3]);
  a[2] = pack_pair<T>(right[0], right[1]);
  a[3] = pack_pair<T>(right[2], right[3]);
}
#endif

// Byte offsets, within a tile of kStride numbers a row, that a lane passes to ldmatrix for 16 x 16
// numbers. `left`: of a left factor (m x k) as it lies, or of a right factor lying (k x n), with
// the transposing load. `right`: of a right factor lying (n x k), or of a left factor lying
// (k x m), with the transposing load.
template <int kStride>
struct LaneOffsets {
  __device__ __forceinline__ static uint32_t left() {
    const uint32_t lane = threadIdx.x % 32;
    return (lane % 16 * kStride + lane / 16 * 8) * 2;
  }
  __device__ __forceinline__ static uint32_t right() {
    const uint32_t lane = threadIdx.x % 32;
    return ((lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8) * 2;
  }
};

#if VP_HAS_ASYNC_MMA
// How a thread block of kThreads copies rows of kDim numbers: a row's 16-byte pieces go to
// neighbouring lanes, kStep rows at a time.
template <class T, int kDim, int kThreads>
struct RowCopier {
  static constexpr int kPieces = kDim / 8, kStride = kDim + 8;
  static constexpr int kLanes = kPieces <= 4 ? 4 : kPieces <= 8 ? 8 : 16;
  static constexpr int kStep = kThreads / kLanes;

  // dim: the head's size; what is missing to kDim is written as zeros.
  __device__ __forceinline__ explicit RowCopier(int dim)
      : row(threadIdx.x / kLanes), piece(threadIdx.x % kLanes), filled(piece * 8 < dim) {}
  // Calls f(row) for this thread's rows of kRows; whole warps go round together.
  template <int kRows, class F>
  __device__ __forceinline__ void for_rows(F&& f) const {
#pragma unroll
    for (int r = 0; r < kRows; r += kStep)
      if (kRows % kStep == 0 || r + row < kRows) f(r + row);
  }
  // kRows rows of a tile from the matrix at `from`, of which `valid` exist; others are zeros.
  template <int kRows>
  __device__ __forceinline__ void copy(uint32_t tile, const T* from, int64_t stride,
                                       int valid) const {
    if (piece >= kPieces) return;
    from += row * stride + piece * 8;
    tile += (row * kStride + piece * 8) * 2;
    valid = filled ? valid : 0;
    for_rows<kRows>([&](int r) {
      copy16(tile + (r - row) * kStride * 2, from, r < valid);
      from += kStep * stride;
    });
  }
  int row, piece;
  bool filled;
};

// Two rows of two neighbouring 16 x 8 results, `row` and `row + 8` of a matrix, in whole 32-byte
// sectors: a lane swaps with its neighbour to hold four numbers in a row. `columns` are left.
template <class T>
__device__ __forceinline__ void store_pair(T* to, int64_t stride, const float (&left)[4],
                                           const float (&right)[4], float factor, int rows,
                                           int columns) {
  const int lane = threadIdx.x % 32, row = lane / 4;
  const bool odd = lane % 2 != 0;
  const int column = lane % 4 / 2 * 4 + odd * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t a = pack_pair<T>(left[2 * half] * factor, left[2 * half + 1] * factor);
    const uint32_t b = pack_pair<T>(right[2 * half] * factor, right[2 * half + 1] * factor);
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1);
    if (row + 8 * half < rows && column < columns)
      *reinterpret_cast<uint2*>(to + (row + 8 * half) * stride + column) =
          odd ? make_uint2(other, b) : make_uint2(a, other);
  }
}
#endif

}  // namespace voltapile::cuda
