// Instructions of sm_90a as fused attention needs them: barriers in shared memory, tiles copied by
// the copy engine (TMA), products of warpgroups (wgmma). A warpgroup is four neighbouring warps,
// the first a multiple of four. PTX ISA 8.0, chapters "mbarrier", "cp.async.bulk.tensor" and
// "wgmma".
#pragma once
#include <cuda.h>

#include "attention_mma.cuh"

// Host code sees the kernels; only code for sm_90a has their bodies.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define VP_HAS_WGMMA 1
#else
#define VP_HAS_WGMMA 0
#endif

namespace voltapile::cuda {

#if VP_HAS_WGMMA
// A barrier's phase ends when all its arrivals and all its announced bytes have come.
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes barriers just initialised known to the copy engine.
__device__ __forceinline__ void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool phase_ended(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}
// Until the phase of this parity has ended; a new barrier's last phase has parity 1.
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  while (!phase_ended(barrier, parity)) {}
}

__device__ __forceinline__ void store_zeros(uint32_t address) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}
// Shared memory written by this thread, for the copy engine and wgmma.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Of one warpgroup; `id` 1 to 15.
__device__ __forceinline__ void warpgroup_sync(int id) {
  asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// One box of (D,H,3,T,B); what lies outside becomes zeros, which count as bytes copied.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                         int d, int h, int part, int t, int b) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(d), "r"(h), "r"(part), "r"(t), "r"(b)
      : "memory");
}
// One box of (D,H,T,B).
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                         int d, int h, int t, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(d), "r"(h), "r"(t), "r"(b)
      : "memory");
}
// What of a box of (D,H,3,T,B) or (D,H,T,B) lies outside is not stored.
__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t from, int d, int h,
                                          int part, int t, int b) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(from), "r"(d), "r"(h), "r"(part), "r"(t), "r"(b)
      : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t from, int d, int h,
                                          int t, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(from), "r"(d), "r"(h), "r"(t), "r"(b)
      : "memory");
}
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the committed stores have read shared memory.
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void store_matrices(uint32_t address, const Fragment& r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// Each 8 x 8 matrix as its transpose.
__device__ __forceinline__ void store_matrices_transposed(uint32_t address, const uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// What wgmma takes for a matrix in shared memory whose rows of kRowBytes (32, 64 or 128) lie one
// after the other, swizzled over kRowBytes, the first on 1024 bytes. `across`: bytes from one
// column of such rows to the next, where a product is wider than a row. In units of 16 bytes: bits
// 0 to 13 the address, from 16 on `across`, from 32 on eight rows; bits 62 and 63 the swizzle (PTX
// ISA, "Matrix Descriptor Format" of wgmma).
template <int kRowBytes>
__device__ __forceinline__ uint64_t matrix_at(uint32_t address, int across = 16) {
  static_assert(kRowBytes == 32 || kRowBytes == 64 || kRowBytes == 128);
  constexpr uint64_t kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
  return kSwizzle << 62 | uint64_t{8 * kRowBytes / 16} << 32 |
         static_cast<uint64_t>(across / 16) << 16 | (address & 0x3ffff) / 16;
}
// Bytes from what a matrix_at() says, for an offset that is the same for all threads.
__device__ __forceinline__ uint64_t moved(uint64_t matrix, int bytes) {
  return matrix + bytes / 16;
}

// Before the first product whose registers this thread has written.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads and writes of registers that wgmma works on past this point.
template <class R, int kCount>
__device__ __forceinline__ void pin(R (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if constexpr (std::is_same_v<R, float>) asm volatile("" : "+f"(r[i])::"memory");
    else asm volatile("" : "+r"(r[i])::"memory");
}

// d (64 x kColumns, f32) = a b + (keep ? d : 0), 16 numbers deep. multiply_rows: a (64 x 16) and b
// (kColumns x 16) in shared memory. multiply_columns: a in registers or, with a matrix_at(), in
// shared memory, b (16 x kColumns) in shared memory. A lane's part of d is, for each 8 columns,
// that of mma.sync's c.
template <class T, int kColumns>
struct WarpgroupProduct;

#define VP_F8(d, i)                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define VP_F16(d, i) VP_F8(d, i), VP_F8(d, i + 8)
#define VP_F32(d, i) VP_F16(d, i), VP_F16(d, i + 16)
#define VP_F48(d, i) VP_F32(d, i), VP_F16(d, i + 32)
#define VP_F56(d, i) VP_F48(d, i), VP_F8(d, i + 48)
#define VP_F64(d, i) VP_F48(d, i), VP_F16(d, i + 48)
#define VP_N8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define VP_N16 VP_N8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define VP_N32 VP_N16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define VP_N48 VP_N32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define VP_N56 VP_N48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define VP_N64 VP_N56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define VP_WGMMA(columns, type) \
  "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type
// r0 to r5: numbers of the operands that follow d's registers. The instruction's last numbers:
// signs of a and of b; then, for a in shared memory and for b, 0 where its rows run along the
// depth.
#define VP_PRODUCT(T, type, columns, registers, r0, r1, r2, r3, r4, r5)                       \
  template <>                                                                                 \
  struct WarpgroupProduct<T, columns> {                                                       \
    __device__ __forceinline__ static void multiply_rows(float* d, uint64_t a, uint64_t b,    \
                                                         int keep) {                          \
      multiply_shared<0>(d, a, b, keep);                                                      \
    }                                                                                         \
    __device__ __forceinline__ static void multiply_columns(float* d, uint64_t a, uint64_t b, \
                                                            int keep) {                       \
      multiply_shared<1>(d, a, b, keep);                                                      \
    }                                                                                         \
    __device__ __forceinline__ static void multiply_columns(float* d, const uint32_t* a,      \
                                                            uint64_t b, int keep) {           \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r5                                   \
                   ", 0;\n" VP_WGMMA(columns, type) " {" VP_N##registers                      \
                   "}, {%" #r0 ",%" #r1 ",%" #r2 ",%" #r3 "}, %" #r4 ", p, 1, 1, 1;\n}\n"     \
                   : VP_F##registers(d, 0)                                                    \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));          \
    }                                                                                         \
                                                                                              \
   private:                                                                                   \
    template <int kTransposed>                                                                \
    __device__ __forceinline__ static void multiply_shared(float* d, uint64_t a, uint64_t b,  \
                                                           int keep) {                        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2                                   \
                   ", 0;\n" VP_WGMMA(columns, type) " {" VP_N##registers                      \
                   "}, %" #r0 ", %" #r1 ", p, 1, 1, 0, %" #r3 ";\n}\n"                        \
                   : VP_F##registers(d, 0)                                                    \
                   : "l"(a), "l"(b), "r"(keep), "n"(kTransposed));                            \
    }                                                                                         \
  };
#define VP_PRODUCTS(T, type)                           \
  VP_PRODUCT(T, type, 16, 8, 8, 9, 10, 11, 12, 13)     \
  VP_PRODUCT(T, type, 32, 16, 16, 17, 18, 19, 20, 21)  \
  VP_PRODUCT(T, type, 64, 32, 32, 33, 34, 35, 36, 37)  \
  VP_PRODUCT(T, type, 96, 48, 48, 49, 50, 51, 52, 53)  \
  VP_PRODUCT(T, type, 112, 56, 56, 57, 58, 59, 60, 61) \
  VP_PRODUCT(T, type, 128, 64, 64, 65, 66, 67, 68, 69)
VP_PRODUCTS(__half, "f16")
VP_PRODUCTS(__nv_bfloat16, "bf16")
#undef VP_PRODUCTS
#undef VP_PRODUCT
#undef VP_WGMMA
#undef VP_N64
#undef VP_N56
#undef VP_N48
#undef VP_N32
#undef VP_N16
#undef VP_N8
#undef VP_F64
#undef VP_F56
#undef VP_F48
#undef VP_F32
#undef VP_F16
#undef VP_F8
#endif

}  // namespace voltapile::cuda
