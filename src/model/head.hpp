// Pooling, the last norm, and the classifier with its loss; classes are divided over the tensor
// axis. B samples, T tokens, R own rows, C dim, L local classes. Pooling comes before the norm: for
// the class token it commutes with it, and for the mean timm's fc_norm is defined so.
#pragma once
#include "layer_context.hpp"
#include "layer_tables.hpp"

namespace voltapile {

class Head {
 public:
  Head(const LayerContext& context, LayerTables tables);

  // x (R, C); adds to step.loss, and to step.correct where that is given.
  void forward(const LayerMemory&, const MicroStep&, const Targets&, const TensorView& x) const;
  // Writes dx (R, C), which may be empty for Gradients::weight.
  void backward(Gradients, const LayerMemory&, const MicroStep&, const Targets&,
                const TensorView& dx) const;

 private:
  int64_t first_class() const;
  void add_loss(const LayerMemory&, const MicroStep&, const Targets&) const;
  void backward_to_input(const LayerMemory&, const TensorView& dlogits, const TensorView& dx) const;

  const LayerContext* context_;
  LayerTables tables_;
  const char* norm_weight_;
  const char* norm_bias_;
};

}  // namespace voltapile
