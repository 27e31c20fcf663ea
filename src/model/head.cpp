#include "head.hpp"

namespace voltapile {

Head::Head(const LayerContext& context, const FlatLayout& flat, int layer)
    : context_(&context), parameters_(*context.architecture, flat, layer, context.sizes.tp) {
  const Architecture& architecture = *context.architecture;
  const Layer& description = architecture.layers[static_cast<size_t>(layer)];
  saved_ = TensorTable(saved_tensors(architecture, description, context.sizes));
  deferred_ = TensorTable(deferred_tensors(architecture, description, context.sizes, false));
  workspace_ = TensorTable(workspace_tensors(architecture, description, context.sizes));
  const bool mean = architecture.model.pool == Pool::mean;
  norm_weight_ = mean ? "fc_norm.weight" : "norm.weight";
  norm_bias_ = mean ? "fc_norm.bias" : "norm.bias";
}

int64_t Head::first_class() const {
  return context_->tensor->rank() * context_->architecture->local_classes(context_->sizes.tp);
}

void Head::forward(const Memory& memory, const MicroStep& step, const TensorView& x) const {
  const LayerContext& c = *context_;
  const Architecture& a = *c.architecture;
  const auto saved = [&](std::string_view name) { return saved_.at(name, memory.saved); };
  const auto weight = [&](std::string_view name) { return parameters_.at(name, memory.weights); };
  const TensorView pooled = saved("pooled");  // (B, C)
  const TensorView normed = saved("norm");    // (B, C)
  const TensorView logits = saved("logits");  // (B, L)
  const TensorView max = saved("max");        // (B)
  const TensorView sums = saved("sums");      // (B, 3)

  const TensorView whole = c.gather_rows(x, workspace_.at("whole", memory.workspace));
  c.kernels->pool(whole.reshaped({c.sizes.micro, a.tokens(), a.model.dim}),
                  a.model.pool == Pool::mean, pooled, *c.stream);
  c.kernels->layer_norm(pooled, weight(norm_weight_), weight(norm_bias_), kNormEpsilon, normed,
                        saved("norm.mean"), saved("norm.rstd"), *c.stream);
  c.kernels->linear(normed, weight("head.weight"), weight("head.bias"), logits, *c.stream);

  c.kernels->logits_max(logits, first_class(), a.model.classes, max, *c.stream);
  c.tensor->all_reduce(max, Reduction::max, *c.stream);
  c.kernels->cross_entropy_sums(logits, first_class(), memory.targets, max, sums, *c.stream);
  c.tensor->all_reduce(sums, Reduction::sum, *c.stream);
  c.kernels->cross_entropy_loss(sums, step.valid, step.loss, *c.stream);
  if (step.correct) count_correct(memory, step);
}

void Head::count_correct(const Memory& memory, const MicroStep& step) const {
  const LayerContext& c = *context_;
  const TensorView rank = workspace_.at("rank", memory.workspace);  // (B)
  c.kernels->count_before_label(saved_.at("logits", memory.saved), first_class(), memory.targets,
                                saved_.at("max", memory.saved), saved_.at("sums", memory.saved),
                                rank, *c.stream);
  c.tensor->all_reduce(rank, Reduction::sum, *c.stream);
  c.kernels->count_correct(rank, step.valid, step.correct, *c.stream);
}

void Head::backward(Gradients part, const Memory& memory, const MicroStep& step,
                    const TensorView& dx) const {
  const LayerContext& c = *context_;
  const Architecture& a = *c.architecture;
  const auto saved = [&](std::string_view name) { return saved_.at(name, memory.saved); };
  const auto workspace = [&](std::string_view name) {
    return workspace_.at(name, memory.workspace);
  };
  const auto weight = [&](std::string_view name) { return parameters_.at(name, memory.weights); };
  const auto gradient = [&](std::string_view name) {
    return parameters_.gradient_at(name, memory.gradients);
  };
  const TensorView dlogits = part == Gradients::both  // (B, L)
                                 ? workspace("logits_gradient")
                                 : deferred_.at("logits_gradient", memory.deferred);
  if (wants_input(part)) {
    const TensorView dnormed = workspace("norm_gradient");    // (B, C)
    const TensorView dpooled = workspace("pooled_gradient");  // (B, C)
    c.kernels->cross_entropy_backward(saved("logits"), first_class(), memory.targets, saved("max"),
                                      saved("sums"), step.loss_factor, step.state, dlogits,
                                      *c.stream);
    c.kernels->linear_backward_input(dlogits, weight("head.weight"), dnormed, *c.stream);
    c.tensor->all_reduce(dnormed, Reduction::sum, *c.stream);
    c.kernels->layer_norm_backward(dnormed, saved("pooled"), weight(norm_weight_),
                                   saved("norm.mean"), saved("norm.rstd"), {}, dpooled,
                                   gradient(norm_weight_), gradient(norm_bias_), *c.stream);
    const TensorView whole = c.sizes.sequence ? workspace("whole") : dx;
    c.kernels->pool_backward(dpooled, a.model.pool == Pool::mean,
                             whole.reshaped({c.sizes.micro, a.tokens(), a.model.dim}), *c.stream);
    if (c.sizes.sequence) c.kernels->cast(c.own_slice(whole), dx, *c.stream);
  }
  if (wants_weight(part)) {
    c.kernels->linear_backward_weight(dlogits, saved("norm"), gradient("head.weight"),
                                      gradient("head.bias"), *c.stream);
  }
}

}  // namespace voltapile
