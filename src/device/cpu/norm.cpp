#include <cmath>
#include <limits>

#include "voltapile/device/shapes.hpp"

#include "kernels.hpp"
#include "parallel.hpp"

namespace voltapile::cpu {
namespace {

constexpr int64_t kGrain = 32768;  // elements

struct PieceSum {
  double squares;
  int64_t not_finite;
};

template <class T>
PieceSum sum_of(const T* g, int64_t n) {
  using A = Acc<T>;
  double squares = 0;
  int64_t not_finite = 0;
#pragma omp simd reduction(+ : squares, not_finite)
  for (int64_t i = 0; i < n; ++i) {
    const A x = convert<T, A>(g[i]);
    const double wide = x;
    squares += wide * wide;
    not_finite += std::fabs(x) <= std::numeric_limits<A>::max() ? 0 : 1;
  }
  return {squares, not_finite};
}

// Pieces of the flat buffer are cut into blocks; blocks are added in order.
template <class T>
void sum_squares_all(ThreadPool& pool, const T* g, std::span<const NormPiece> parts, double* slots,
                     int32_t* first_bad) {
  int64_t blocks = 0;
  for (const NormPiece& part : parts) blocks += pieces(part.end - part.begin, kGrain);
  struct Block {
    int64_t begin, end;
    int32_t parameter;
    PieceSum sum;
  };
  Block* block = scratch<Block>(Scratch::call, blocks);
  int64_t count = 0;
  for (const NormPiece& part : parts)
    for (int64_t at = part.begin; at < part.end; at += kGrain)
      block[count++] = {at, std::min(at + kGrain, part.end), part.parameter, {}};
  for_pieces(pool, blocks, 4, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      block[i].sum = sum_of(g + block[i].begin, block[i].end - block[i].begin);
  });
  for (int64_t i = 0; i < blocks; ++i) {
    slots[NormSlots::squares] += block[i].sum.squares;
    slots[NormSlots::not_finite] += static_cast<double>(block[i].sum.not_finite);
    if (block[i].sum.not_finite) *first_bad = std::min(*first_bad, block[i].parameter);
  }
}

void finish(const double* slots, int32_t first_bad, const NormRules& rules, StepState* state,
            StepState* next) {
  const double squares = slots[NormSlots::squares], scale = state->loss_scale;
  const bool skip = slots[NormSlots::not_finite] > 0 || !std::isfinite(squares);
  state->loss = slots[NormSlots::loss] / slots[NormSlots::samples];
  state->grad_norm = std::sqrt(squares) / scale;
  // As torch.nn.utils.clip_grad_norm_ has it.
  const double clip = rules.clip > 0 ? std::min(1.0, rules.clip / (state->grad_norm + 1e-6)) : 1.0;
  (rules.for_next ? next : state)->multiplier = skip ? 0 : clip / scale;
  state->skip = skip ? 1 : 0;
  state->bad_parameter = skip ? first_bad : -1;

  next->adam_step = state->adam_step + (skip ? 0 : 1);
  next->skipped_steps = state->skipped_steps + (skip ? 1 : 0);
  if (rules.for_next) {
    next->skip = 0;
    return;
  }
  int64_t good = skip ? 0 : state->good_steps + 1;
  double new_scale = scale;
  if (rules.dynamic_scale) {
    if (skip) {
      new_scale = std::max(rules.min_scale, scale / 2);
    } else if (good >= rules.growth_interval) {
      new_scale = std::min(rules.max_scale, scale * 2);
      good = 0;
    }
  }
  next->good_steps = good;
  next->loss_scale = new_scale;
}

}  // namespace

void CpuKernels::sum_squares(TensorView gradients, std::span<const NormPiece> parts,
                             TensorView slots, TensorView first_bad, Stream& stream) {
  shapes::sum_squares("sum_squares", slots, first_bad);
  launch(gradients.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    sum_squares_all(pool_, gradients.as<T>(), parts, slots.as<double>(), first_bad.as<int32_t>());
  });
}

void CpuKernels::finish_norm(TensorView slots, TensorView first_bad, const NormRules& rules,
                             StepState* state, StepState* next, Stream& stream) {
  shapes::sum_squares("finish_norm", slots, first_bad);
  on(stream).enqueue(
      [=] { finish(slots.as<double>(), *first_bad.as<int32_t>(), rules, state, next); });
}

}  // namespace voltapile::cpu
