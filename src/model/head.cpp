#include "head.hpp"

namespace voltapile {

Head::Head(const LayerContext& context, LayerTables tables)
    : context_(&context), tables_(std::move(tables)) {
  const bool mean = context.architecture->model.pool == Pool::mean;
  norm_weight_ = mean ? "fc_norm.weight" : "norm.weight";
  norm_bias_ = mean ? "fc_norm.bias" : "norm.bias";
}

int64_t Head::first_class() const {
  return context_->tensor->rank() * context_->architecture->local_classes(context_->sizes.tp);
}

void Head::forward(const LayerMemory& memory, const MicroStep& step, const Targets& targets,
                   const TensorView& x) const {
  const LayerContext& c = *context_;
  const Architecture& a = *c.architecture;
  const TensorView pooled = tables_.saved("pooled", memory);                    // (B, C)
  const TensorView normed = tables_.saved("norm", memory);                      // (B, C)
  const TensorView full = c.gather_rows(x, tables_.temporary("full", memory));  // (B*T, C)

  c.kernels->pool(full.reshaped({c.sizes.micro, a.tokens(), a.model.dim}),
                  a.model.pool == Pool::mean, pooled, *c.stream);
  c.kernels->layer_norm(pooled, tables_.weight(norm_weight_, memory),
                        tables_.weight(norm_bias_, memory), kNormEpsilon, normed,
                        tables_.saved("mean", memory), tables_.saved("rstd", memory), *c.stream);
  c.kernels->linear(normed, tables_.weight("head.weight", memory),
                    tables_.weight("head.bias", memory), tables_.saved("logits", memory),
                    *c.stream);
  if (step.logits) c.kernels->cast(tables_.saved("logits", memory), step.logits, *c.stream);
  add_loss(memory, step, targets);
}

// Each rank sees its classes only: the softmax is put together from maxima and sums.
void Head::add_loss(const LayerMemory& memory, const MicroStep& step,
                    const Targets& targets) const {
  const LayerContext& c = *context_;
  const TensorView logits = tables_.saved("logits", memory);  // (B, L)
  const TensorView max = tables_.saved("max", memory);        // (B)
  const TensorView sums = tables_.saved("sums", memory);      // (B, 3)
  c.kernels->logits_max(logits, first_class(), c.architecture->model.classes, max, *c.stream);
  c.tensor->all_reduce(max, Reduction::max, *c.stream);
  c.kernels->cross_entropy_sums(logits, first_class(), targets, max, sums, *c.stream);
  c.tensor->all_reduce(sums, Reduction::sum, *c.stream);
  c.kernels->cross_entropy_loss(sums, step.valid, step.loss, *c.stream);
  if (!step.correct) return;
  const TensorView rank = tables_.temporary("rank", memory);  // (B)
  c.kernels->count_before_label(logits, first_class(), targets, max, sums, rank, *c.stream);
  c.tensor->all_reduce(rank, Reduction::sum, *c.stream);
  c.kernels->count_correct(rank, step.valid, step.correct, *c.stream);
}

void Head::backward(Gradients part, const LayerMemory& memory, const MicroStep& step,
                    const Targets& targets, const TensorView& dx) const {
  const LayerContext& c = *context_;
  const TensorView dlogits = part == Gradients::both  // (B, L)
                                 ? tables_.temporary("logits_gradient", memory)
                                 : tables_.later("logits_gradient", memory);
  if (wants_input(part)) {
    c.kernels->cross_entropy_backward(tables_.saved("logits", memory), first_class(), targets,
                                      tables_.saved("max", memory), tables_.saved("sums", memory),
                                      step.loss_factor, step.state, dlogits, *c.stream);
    backward_to_input(memory, dlogits, dx);
  }
  if (wants_weight(part)) {
    c.kernels->linear_backward_weight(dlogits, tables_.saved("norm", memory),
                                      tables_.gradient("head.weight", memory),
                                      tables_.gradient("head.bias", memory), *c.stream);
  }
}

void Head::backward_to_input(const LayerMemory& memory, const TensorView& dlogits,
                             const TensorView& dx) const {
  const LayerContext& c = *context_;
  const Architecture& a = *c.architecture;
  const TensorView dnormed = tables_.temporary("norm_gradient", memory);              // (B, C)
  const TensorView dpooled = tables_.temporary("pooled_gradient", memory);            // (B, C)
  const TensorView full = c.sizes.sequence ? tables_.temporary("full", memory) : dx;  // (B*T, C)

  c.kernels->linear_backward_input(dlogits, tables_.weight("head.weight", memory), dnormed,
                                   *c.stream);
  c.tensor->all_reduce(dnormed, Reduction::sum, *c.stream);
  c.kernels->layer_norm_backward(
      dnormed, tables_.saved("pooled", memory), tables_.weight(norm_weight_, memory),
      tables_.saved("mean", memory), tables_.saved("rstd", memory), {}, dpooled,
      tables_.gradient(norm_weight_, memory), tables_.gradient(norm_bias_, memory), *c.stream);
  c.kernels->pool_backward(dpooled, a.model.pool == Pool::mean,
                           full.reshaped({c.sizes.micro, a.tokens(), a.model.dim}), *c.stream);
  if (c.sizes.sequence) c.kernels->cast(c.own_slice(full), dx, *c.stream);
}

}  // namespace voltapile
