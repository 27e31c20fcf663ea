#include "embedding.hpp"

namespace voltapile {

Embedding::Embedding(const LayerContext& context, LayerTables tables)
    : context_(&context), tables_(std::move(tables)) {}

TensorView Embedding::make_patches(const LayerMemory& memory, const TensorView& pictures) const {
  const LayerContext& c = *context_;
  const auto& model = c.architecture->model;
  const TensorView patches = tables_.temporary("patches", memory);
  c.kernels->patchify(pictures, c.pixel_mean, c.pixel_std, model.patch[0], model.patch[1], patches,
                      *c.stream);
  return patches;
}

void Embedding::forward(const LayerMemory& memory, const TensorView& pictures,
                        const TensorView& out) const {
  const LayerContext& c = *context_;
  const Architecture& a = *c.architecture;
  const int64_t samples = c.sizes.micro, dim = a.model.dim;
  const TensorView tokens = tables_.temporary("tokens", memory);                       // (B*N, C)
  const TensorView full = c.sizes.sequence ? tables_.temporary("full", memory) : out;  // (B*T, C)
  const TensorView class_token = tables_.weight("cls_token", memory);

  c.kernels->linear(make_patches(memory, pictures), tables_.weight("proj.weight", memory),
                    tables_.weight("proj.bias", memory), tokens, *c.stream);
  c.kernels->add_position(tokens.reshaped({samples, a.patches(), dim}),
                          class_token ? class_token.reshaped({dim}) : class_token,
                          tables_.weight("pos_embed", memory).reshaped({a.tokens(), dim}),
                          full.reshaped({samples, a.tokens(), dim}), *c.stream);
  if (c.sizes.sequence) c.kernels->cast(c.own_slice(full), out, *c.stream);
}

void Embedding::backward(const LayerMemory& memory, const TensorView& pictures,
                         const TensorView& dout) const {
  const LayerContext& c = *context_;
  const Architecture& a = *c.architecture;
  const int64_t samples = c.sizes.micro, dim = a.model.dim;
  const TensorView dtokens = tables_.temporary("tokens", memory);                  // (B*N, C)
  const TensorView full = c.gather_rows(dout, tables_.temporary("full", memory));  // (B*T, C)
  const TensorView dclass = tables_.gradient("cls_token", memory);
  const TensorView dposition = tables_.gradient("pos_embed", memory);

  c.kernels->add_position_backward(
      full.reshaped({samples, a.tokens(), dim}), dtokens.reshaped({samples, a.patches(), dim}),
      dclass ? dclass.reshaped({dim}) : dclass,
      dposition ? dposition.reshaped({a.tokens(), dim}) : dposition, *c.stream);
  c.kernels->linear_backward_weight(dtokens, make_patches(memory, pictures),
                                    tables_.gradient("proj.weight", memory),
                                    tables_.gradient("proj.bias", memory), *c.stream);
}

}  // namespace voltapile
