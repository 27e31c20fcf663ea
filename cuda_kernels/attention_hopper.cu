// Which of the sm_90a kernels runs, and how the copy engine finds its operands. Compiled where the
// build has code for sm_90; otherwise no_attention_hopper.cpp takes its place.
#include <array>

#include "attention.hpp"
#include "attention_hopper.cuh"
#include "attention_launch.cuh"
#include "driver.hpp"

namespace voltapile::cuda {
namespace {

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
CUtensorMap map_of_qkv(const TensorView& qkv, int rows, int columns) {
  const int64_t b = qkv.shape[0], t = qkv.shape[1], h = qkv.shape[3], d = qkv.shape[4];
  return map_of<5>(qkv, {d, h, 3, t, b}, {d, h * d, 3 * h * d, t * 3 * h * d},
                   {columns, 1, 1, rows, 1});
}
CUtensorMap map_of_out(const TensorView& out, int columns) {
  const int64_t b = out.shape[0], t = out.shape[1], h = out.shape[2], d = out.shape[3];
  return map_of<4>(out, {d, h, t, b}, {d, h * d, t * h * d}, {columns, 1, 64, 1});
}

template <class T, class S>
void launch_hopper(const TensorView& qkv, const TensorView& lengths, const TensorView& out,
                   const TensorView& lse, int multiprocessors, Stream& stream) {
  HopperOperands o{};
  o.queries = map_of_qkv(qkv, 64, 64);
  o.keys = map_of_qkv(qkv, S::kKeys, 64);
  o.out = map_of_out(out, 64);
  if constexpr (S::kTail > 0) {
    o.queries_tail = map_of_qkv(qkv, 64, S::kTail);
    o.keys_tail = map_of_qkv(qkv, S::kKeys, S::kTail);
    o.out_tail = map_of_out(out, S::kTail);
  }
  o.lengths = as<const int>(lengths);
  o.lse = as<float>(lse);
  o.tokens = static_cast<int>(qkv.shape[1]);
  o.heads = static_cast<int>(qkv.shape[3]);
  o.scale = attention_scale(qkv);
  o.tiles = (o.tokens + 63) / 64;
  const int64_t heads = qkv.shape[0] * o.heads;
  // Keys and values of a whole head stay in the ring, unless that leaves multiprocessors idle.
  const bool resident =
      2 * ((o.tokens + S::kKeys - 1) / S::kKeys) <= S::kStages && heads >= multiprocessors;
  o.group = resident ? o.tiles : std::min(o.tiles, S::kGroups);
  const int64_t items = heads * ((o.tiles + o.group - 1) / o.group);
  o.items = static_cast<int>(items);
  launch(attention_hopper_kernel<T, S>, std::min<int64_t>(items, multiprocessors), S::kThreads,
         S::kSharedBytes, stream, o);
}

// The kernel's choices for a head size, longer tiles of keys first: the shape is taken that
// computes the fewest keys beyond the last. Measured on an H200 at 197, 256, 257 and 1024 tokens.
template <class... S>
struct Shapes {};
template <int kDim>
struct HopperChoice;
template <>
struct HopperChoice<64> {
  using Type = Shapes<HopperShape<64, 3, 128, 10, 2, true>, HopperShape<64, 3, 112, 12, 2, true>,
                      HopperShape<64, 3, 96, 14, 2, true>>;
};
template <>
struct HopperChoice<80> {
  using Type = Shapes<HopperShape<80, 3, 128, 8, 2, false>, HopperShape<80, 3, 96, 10, 2, true>>;
};
template <>
struct HopperChoice<96> {
  using Type = Shapes<HopperShape<96, 2, 128, 6, 2, true>>;
};
template <>
struct HopperChoice<128> {
  using Type = Shapes<HopperShape<128, 2, 128, 5, 2, true>, HopperShape<128, 2, 96, 6, 2, true>>;
};

// Calls f(shape) with the one for so many tokens.
template <class... S, class F>
void visit_shape(Shapes<S...>, int64_t tokens, const F& f) {
  const auto computed = [&](int64_t keys) { return (tokens + keys - 1) / keys * keys; };
  int64_t keys = 0;
  ((keys = keys == 0 || computed(S::kKeys) < computed(keys) ? S::kKeys : keys), ...);
  (void)((S::kKeys == keys && (f(S{}), true)) || ...);
}

}  // namespace

bool attention_hopper(const TensorView& qkv, const TensorView& lengths, const TensorView& out,
                      const TensorView& lse, Context& context, Stream& stream) {
  if (context.gpu().sm != 90 || !tensor_cores_take(qkv, {&qkv, &out})) return false;
  const auto run = [&](auto dim) {
    return visit_half(qkv.dtype, [&](auto tag) {
      using T = decltype(tag);
      visit_shape(typename HopperChoice<dim()>::Type{}, qkv.shape[1], [&](auto shape) {
        launch_hopper<T, decltype(shape)>(qkv, lengths, out, lse, context.gpu().multiprocessors,
                                          stream);
      });
      return true;
    });
  };
  switch (qkv.shape[4]) {
    case 64: return run(std::integral_constant<int, 64>{});
    case 80: return run(std::integral_constant<int, 80>{});
    case 96: return run(std::integral_constant<int, 96>{});
    case 128: return run(std::integral_constant<int, 128>{});
    default: return false;
  }
}

}  // namespace voltapile::cuda
