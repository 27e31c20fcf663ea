// What every layer is given besides its tensors, and the tensor axis seen from inside a layer.
#pragma once
#include "voltapile/model/chunk_model.hpp"

namespace voltapile {

// Which gradients a backward call computes. `both` runs the same operations as the two parts.
enum class Gradients { input, weight, both };
constexpr bool wants_input(Gradients g) { return g != Gradients::weight; }
constexpr bool wants_weight(Gradients g) { return g != Gradients::input; }

// Epsilon of every layer norm, as timm's Vision Transformers have it.
inline constexpr double kNormEpsilon = 1e-6;

struct LayerContext : ModelContext {
  LayerContext(const ModelContext& context, bool is_training)
      : ModelContext(context), training(is_training) {}
  bool training;  // false: no drop path

  int64_t all_rows() const { return sizes.micro * architecture->tokens(); }  // B*T
  int64_t own_rows() const { return architecture->rows(sizes); }             // R
  int64_t row_offset() const { return sizes.sequence ? tensor->rank() * own_rows() : 0; }

  // Rows [row_offset, row_offset + R) of a (B*T, C) tensor.
  TensorView own_slice(const TensorView& full) const {
    return full.slice_rows(row_offset(), row_offset() + own_rows());
  }
  // (R, C) of each rank -> (B*T, C). `full` is written only when rows are divided.
  TensorView gather_rows(const TensorView& rows, const TensorView& full) const {
    if (!sizes.sequence) return rows;
    tensor->all_gather(rows, full, *stream);
    return full;
  }
  // Summands (B*T, C) of each rank -> their sum (R, C), in `kept` or else inside `full`.
  TensorView sum_to_rows(const TensorView& full, const TensorView& kept = {}) const {
    if (!sizes.sequence) {
      tensor->all_reduce(full, Reduction::sum, *stream);
      return full;
    }
    const TensorView rows = kept ? kept : own_slice(full);
    tensor->reduce_scatter(full, rows, Reduction::sum, *stream);
    return rows;
  }
};

}  // namespace voltapile
