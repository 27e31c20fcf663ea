// Pooling, the last norm, and the classifier with its loss; classes are divided over the tensor
// axis. B samples, T tokens, R own rows, C dim, L local classes. Pooling comes before the norm: for
// the class token it commutes with it, and for the mean timm's fc_norm is defined so.
#pragma once
#include "layer_context.hpp"
#include "tensor_table.hpp"

namespace voltapile {

class Head {
 public:
  Head(const LayerContext& context, const FlatLayout& flat, int layer);

  struct Memory {
    TensorView weights, gradients;  // of the chunk, flat
    std::byte* saved = nullptr;
    std::byte* deferred = nullptr;  // split backward only
    std::byte* workspace = nullptr;
    Targets targets;
  };
  // x (R, C); adds to step.loss, and to step.correct where that is given.
  void forward(const Memory&, const MicroStep& step, const TensorView& x) const;
  // Writes dx (R, C); for Gradients::weight it may be empty.
  void backward(Gradients, const Memory&, const MicroStep& step, const TensorView& dx) const;

 private:
  int64_t first_class() const;
  void count_correct(const Memory&, const MicroStep& step) const;

  const LayerContext* context_;
  ParameterTable parameters_;
  TensorTable saved_, deferred_, workspace_;
  const char* norm_weight_;
  const char* norm_bias_;
};

}  // namespace voltapile
