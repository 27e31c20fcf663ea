// How the copy engine of sm_90 finds the operands of attention.
#pragma once
#include <array>

#include <cuda.h>

#include "voltapile/base/tensor_view.hpp"

#include "driver.hpp"

namespace voltapile::cuda {

// Of a tensor of f16 or bf16 whose fastest axis comes first: boxes of `box`, swizzled over a row.
template <size_t kRank>
CUtensorMap map_of(const TensorView& t, const std::array<int64_t, kRank>& extents,
                   const std::array<int64_t, kRank - 1>& strides,
                   const std::array<int, kRank>& box) {
  static const auto encode =
      driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  cuuint64_t global_dim[kRank], global_strides[kRank];
  cuuint32_t box_dim[kRank], steps[kRank];
  for (size_t i = 0; i < kRank; ++i) {
    global_dim[i] = static_cast<cuuint64_t>(extents[i]);
    if (i > 0) global_strides[i - 1] = static_cast<cuuint64_t>(strides[i - 1]) * 2;
    box_dim[i] = static_cast<cuuint32_t>(box[i]);
    steps[i] = 1;
  }
  const int row_bytes = box[0] * 2;
  CUtensorMap map;
  const CUresult code = encode(
      &map,
      t.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      kRank, t.data, global_dim, global_strides, box_dim, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
      : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                        : CU_TENSOR_MAP_SWIZZLE_32B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  VP_CHECK(code == CUDA_SUCCESS,
           "cuTensorMapEncodeTiled failed with {} for {} tokens of head size {}",
           static_cast<int>(code), extents[kRank - 2], extents[0]);
  return map;
}
inline CUtensorMap map_of_qkv(const TensorView& qkv, int rows, int columns) {
  const int64_t b = qkv.shape[0], t = qkv.shape[1], h = qkv.shape[3], d = qkv.shape[4];
  return map_of<5>(qkv, {d, h, 3, t, b}, {d, h * d, 3 * h * d, t * 3 * h * d},
                   {columns, 1, 1, rows, 1});
}
inline CUtensorMap map_of_out(const TensorView& out, int columns) {
  const int64_t b = out.shape[0], t = out.shape[1], h = out.shape[2], d = out.shape[3];
  return map_of<4>(out, {d, h, t, b}, {d, h * d, t * h * d}, {columns, 1, 64, 1});
}

}  // namespace voltapile::cuda
