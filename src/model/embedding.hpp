// Patch embedding, class token and position. Computed in full on every tensor rank; each then keeps
// its rows. B samples, N patches, T tokens, P patch elements, R own rows, C dim.
#pragma once
#include "layer_context.hpp"
#include "layer_tables.hpp"

namespace voltapile {

class Embedding {
 public:
  Embedding(const LayerContext& context, LayerTables tables);

  // pictures (B, channels, H, W) u8 -> out (R, C)
  void forward(const LayerMemory&, const TensorView& pictures, const TensorView& out) const;
  // dout (R, C). All gradients are of weights; pictures have none.
  void backward(const LayerMemory&, const TensorView& pictures, const TensorView& dout) const;

 private:
  TensorView make_patches(const LayerMemory&, const TensorView& pictures) const;  // (B*N, P)

  const LayerContext* context_;
  LayerTables tables_;
};

}  // namespace voltapile
