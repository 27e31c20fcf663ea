#include "embedding.hpp"

namespace voltapile {

Embedding::Embedding(const LayerContext& context, const FlatLayout& flat, int layer)
    : context_(&context), parameters_(*context.architecture, flat, layer, context.sizes.tp) {
  const Architecture& architecture = *context.architecture;
  const Layer& description = architecture.layers[static_cast<size_t>(layer)];
  saved_ = TensorTable(saved_tensors(architecture, description, context.sizes));
  deferred_ = TensorTable(deferred_tensors(architecture, description, context.sizes, false));
  workspace_ = TensorTable(workspace_tensors(architecture, description, context.sizes));
}

void Embedding::forward(const Memory& memory, const TensorView& pictures,
                        const TensorView& out) const {
  const LayerContext& c = *context_;
  const Architecture& a = *c.architecture;
  const int64_t samples = c.sizes.micro, dim = a.model.dim;
  const auto weight = [&](std::string_view name) { return parameters_.at(name, memory.weights); };

  const TensorView patches = saved_.at("patches", memory.saved);          // (B*N, P)
  const TensorView tokens = workspace_.at("tokens", memory.workspace);    // (B*N, C)
  const TensorView whole = c.sizes.sequence ? workspace_.at("whole", memory.workspace) : out;

  c.kernels->patchify(pictures, c.pixel_mean, c.pixel_std, a.model.patch[0], a.model.patch[1],
                      patches, *c.stream);
  c.kernels->linear(patches, weight("proj.weight"), weight("proj.bias"), tokens, *c.stream);
  const TensorView class_token = weight("cls_token");  // (1, C)
  c.kernels->add_position(tokens.reshaped({samples, a.patches(), dim}),
                          class_token ? class_token.reshaped({dim}) : class_token,
                          weight("pos_embed").reshaped({a.tokens(), dim}),
                          whole.reshaped({samples, a.tokens(), dim}), *c.stream);
  if (c.sizes.sequence) c.kernels->cast(c.own_slice(whole), out, *c.stream);
}

void Embedding::backward(Gradients part, const Memory& memory, const TensorView& dout) const {
  const LayerContext& c = *context_;
  const Architecture& a = *c.architecture;
  const int64_t samples = c.sizes.micro, dim = a.model.dim;
  const auto gradient = [&](std::string_view name) {
    return parameters_.gradient_at(name, memory.gradients);
  };
  const TensorView dtokens = part == Gradients::both                      // (B*N, C)
                                 ? workspace_.at("tokens", memory.workspace)
                                 : deferred_.at("tokens_gradient", memory.deferred);
  if (wants_input(part)) {
    const TensorView whole = c.gather_rows(dout, workspace_.at("whole", memory.workspace));
    const TensorView dclass = gradient("cls_token");
    const TensorView dposition = gradient("pos_embed");
    c.kernels->add_position_backward(
        whole.reshaped({samples, a.tokens(), dim}), dtokens.reshaped({samples, a.patches(), dim}),
        dclass ? dclass.reshaped({dim}) : dclass,
        dposition ? dposition.reshaped({a.tokens(), dim}) : dposition, *c.stream);
  }
  if (wants_weight(part)) {
    c.kernels->linear_backward_weight(dtokens, saved_.at("patches", memory.saved),
                                      gradient("proj.weight"), gradient("proj.bias"), *c.stream);
  }
}

}  // namespace voltapile
