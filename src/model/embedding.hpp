// Patch embedding, class token and position. Computed in full on every tensor rank; each then keeps
// its rows. B samples, N patches, T tokens, P patch elements, R own rows, C dim.
#pragma once
#include "layer_context.hpp"
#include "tensor_table.hpp"

namespace voltapile {

class Embedding {
 public:
  Embedding(const LayerContext& context, const FlatLayout& flat, int layer);

  struct Memory {
    TensorView weights, gradients;  // of the chunk, flat
    std::byte* saved = nullptr;
    std::byte* deferred = nullptr;  // split backward only
    std::byte* workspace = nullptr;
  };
  // pictures (B, channels, H, W) u8 -> out (R, C)
  void forward(const Memory&, const TensorView& pictures, const TensorView& out) const;
  // dout (R, C); for Gradients::weight it may be empty.
  void backward(Gradients, const Memory&, const TensorView& dout) const;

 private:
  const LayerContext* context_;
  ParameterTable parameters_;
  TensorTable saved_, deferred_, workspace_;
};

}  // namespace voltapile
