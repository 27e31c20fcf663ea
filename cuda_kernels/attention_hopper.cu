// Which of the sm_90a kernels of the forward pass runs. Compiled where the build has code for
// sm_90; otherwise no_attention_hopper.cpp takes its place.
#include "attention.hpp"
#include "attention_hopper.cuh"
#include "attention_hopper_maps.hpp"
#include "attention_launch.cuh"

namespace voltapile::cuda {
namespace {

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
  const int64_t items = heads * o.groups();
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
  using Type = Shapes<HopperShape<64, 3, 128, 10, true>, HopperShape<64, 3, 112, 12, true>,
                      HopperShape<64, 3, 96, 14, true>>;
};
template <>
struct HopperChoice<80> {
  using Type = Shapes<HopperShape<80, 3, 128, 8, false>, HopperShape<80, 3, 96, 10, true>>;
};
template <>
struct HopperChoice<96> {
  using Type = Shapes<HopperShape<96, 2, 128, 6, true>>;
};
template <>
struct HopperChoice<128> {
  using Type = Shapes<HopperShape<128, 2, 128, 5, true>, HopperShape<128, 2, 96, 6, true>>;
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
