// What the backward kernels of attention are given, and what the compiler must know of them.
#pragma once
#include "attention_mma.cuh"

namespace voltapile::cuda {

template <class T>
struct BackwardOperands {
  const T* dout;       // (B,T,H,D)
  const T* qkv;        // (B,T,3,H,D)
  const int* lengths;  // (B), or null
  const T* out;        // (B,T,H,D)
  const float* lse;    // (B,H,T)
  T* dqkv;             // (B,T,3,H,D)
  float4* partial;     // room of each thread block for dQ between passes; null for one pass
  int64_t partial_stride;
  int tokens, heads, dim;
  int all_heads;  // B * H
  int passes;
  // All passes in one thread block, with dQ; or one pass a thread block and dQ by another kernel.
  bool with_queries;
  float scale;
};

template <int kDim_, int kTiles_, int kWarps_, int kQueries_, int kChunk_>
struct BackwardShape {
  static constexpr int kDim = kDim_;
  static constexpr int kTiles = kTiles_;  // of 16 keys a warp
  static constexpr int kWarps = kWarps_;
  static constexpr int kQueries = kQueries_;  // of a block
  static constexpr int kChunk = kChunk_;      // queries whose scores a warp holds at a time
  static constexpr int kStride = kDim + 8, kScoreStride = kQueries + 8;
  // dQ of a block is made in units of 16 kUnitRows queries x 16 kUnit dims.
  static constexpr int kUnit = kDim % 32 == 0 && kQueries >= 64 ? 2 : 1;
  static constexpr int kUnitRows = kDim >= 96 && kQueries % 32 == 0 ? 2 : 1;
  static constexpr int kUnits = kQueries / 16 / kUnitRows * (kDim / 16 / kUnit);
  static constexpr int kKeys = kWarps * 16 * kTiles;  // of a pass
  static constexpr int kSharedBytes =
      (2 * kKeys * kStride + 4 * kQueries * kStride + kQueries * kDim + 2 * kKeys * kScoreStride) *
          2 +
      4 * kQueries * 4;
  static constexpr bool kTooLargeForSm80 = kSharedBytes > 163 * 1024;
  // float4 of partial dQ that a block of queries takes
  static constexpr int kPartial = kUnits * kUnitRows * 2 * kUnit * 32;
};

}  // namespace voltapile::cuda
