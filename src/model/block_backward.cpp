// Backward mirrors forward. Each half computes input gradients, weight gradients or both by the
// same operations in the same order, so that a split backward gives the same bits.
#include "block.hpp"

namespace voltapile {
namespace {

// A tensor of this shape at the start of a larger one's memory.
TensorView leading_part(const TensorView& memory, const Shape& shape) {
  return memory.slice_flat(0, shape.elements()).reshaped(shape);
}

}  // namespace

void Block::backward(Gradients part, const LayerMemory& memory, const MicroStep& step,
                     const TensorView& x, const TensorView& dout, const TensorView& dx) const {
  const Views v = bind(memory, x);
  mlp_backward(part, v, step, dout, dx);
  attention_backward(part, v, step, dx, dx);
  if (part == Gradients::input) keep_linear_inputs(v);
}

// dout -> dmiddle = dout + gradient through the MLP branch; both (R, C).
void Block::mlp_backward(Gradients part, const Views& v, const MicroStep& step,
                         const TensorView& dout, const TensorView& dmiddle) const {
  const LayerContext& c = *context_;
  const BlockParameters& w = v.weights;
  const BlockParameters& g = v.gradients;
  const BlockSaved& s = v.saved;
  const bool both = part == Gradients::both;
  const DropPath drop = drop_path(step, Branch::mlp);
  const TensorView fc1_gradient =  // (B*T, m)
      both ? leading_part(v.workspace.inner_gradient, s.fc1.shape) : v.deferred.fc1_gradient;

  // Without LayerScale and drop path the branch has the gradient of the sum; a copy is needed only
  // where it outlives this call.
  const bool same = both && !w.scale2 && drop.rate == 0;
  const TensorView dbranch = same   ? dout  // (R, C)
                             : both ? v.workspace.branch_gradient
                                    : v.deferred.branch2_gradient;
  if (wants_input(part)) {
    c.kernels->residual_backward(dout, s.branch2, w.fc2_bias, w.scale2, drop,
                                 same ? TensorView{} : dbranch, g.fc2_bias, g.scale2, *c.stream);
  }
  const TensorView dproduct = c.gather_rows(dbranch, v.workspace.gathered);  // (B*T, C)
  if (wants_input(part)) {
    c.kernels->linear_backward_input_gelu(dproduct, w.fc2_weight, s.fc1, fc1_gradient, *c.stream);
  }
  if (wants_weight(part)) {
    TensorView gelu = v.deferred.gelu ? v.deferred.gelu : s.gelu;  // (B*T, m)
    if (!gelu) c.kernels->gelu(s.fc1, gelu = v.workspace.gelu, *c.stream);
    c.kernels->linear_backward_weight(dproduct, gelu, g.fc2_weight, {}, *c.stream);
  }
  if (wants_input(part)) {
    c.kernels->linear_backward_input(fc1_gradient, w.fc1_weight, v.workspace.product, *c.stream);
    const TensorView dnorm = c.sum_to_rows(v.workspace.product);  // (R, C)
    c.kernels->layer_norm_backward(dnorm, s.middle, w.norm2_weight, s.mean2, s.rstd2, dout, dmiddle,
                                   g.norm2_weight, g.norm2_bias, *c.stream);
  }
  if (wants_weight(part)) {
    TensorView norm = v.deferred.norm2 ? v.deferred.norm2 : s.norm2;  // (R, C)
    if (!norm) {
      c.kernels->layer_norm_apply(s.middle, w.norm2_weight, w.norm2_bias, s.mean2, s.rstd2,
                                  norm = v.workspace.norm, *c.stream);
    }
    c.kernels->linear_backward_weight(fc1_gradient, c.gather_rows(norm, v.workspace.gathered),
                                      g.fc1_weight, g.fc1_bias, *c.stream);
  }
}

// dmiddle -> dx = dmiddle + gradient through the attention branch; both (R, C).
void Block::attention_backward(Gradients part, const Views& v, const MicroStep& step,
                               const TensorView& dmiddle, const TensorView& dx) const {
  const LayerContext& c = *context_;
  const BlockParameters& w = v.weights;
  const BlockParameters& g = v.gradients;
  const BlockSaved& s = v.saved;
  const bool both = part == Gradients::both;
  const DropPath drop = drop_path(step, Branch::attention);
  const TensorView dqkv =  // (B*T, 3c)
      both ? leading_part(v.workspace.inner_gradient, s.qkv.shape) : v.deferred.qkv_gradient;

  const bool same = both && !w.scale1 && drop.rate == 0;
  const TensorView dbranch = same   ? dmiddle  // (R, C)
                             : both ? v.workspace.branch_gradient
                                    : v.deferred.branch1_gradient;
  if (wants_input(part)) {
    c.kernels->residual_backward(dmiddle, s.branch1, w.proj_bias, w.scale1, drop,
                                 same ? TensorView{} : dbranch, g.proj_bias, g.scale1, *c.stream);
  }
  const TensorView dproduct = c.gather_rows(dbranch, v.workspace.gathered);  // (B*T, C)
  if (wants_input(part)) {
    // The gradient of attention's output is gone before `product` is needed for the next one.
    const TensorView dattention = leading_part(v.workspace.product, s.attention.shape);  // (B*T, c)
    c.kernels->linear_backward_input(dproduct, w.proj_weight, dattention, *c.stream);
    attention_core_backward(v, dattention, dqkv);
  }
  if (wants_weight(part)) {
    c.kernels->linear_backward_weight(dproduct,
                                      v.deferred.attention ? v.deferred.attention : s.attention,
                                      g.proj_weight, {}, *c.stream);
  }
  if (wants_input(part)) {
    c.kernels->linear_backward_input(dqkv, w.qkv_weight, v.workspace.product, *c.stream);
    const TensorView dnorm = c.sum_to_rows(v.workspace.product);  // (R, C)
    c.kernels->layer_norm_backward(dnorm, v.x, w.norm1_weight, s.mean1, s.rstd1, dmiddle, dx,
                                   g.norm1_weight, g.norm1_bias, *c.stream);
  }
  if (wants_weight(part)) {
    TensorView norm = v.deferred.norm1 ? v.deferred.norm1 : s.norm1;  // (R, C)
    if (!norm) {
      c.kernels->layer_norm_apply(v.x, w.norm1_weight, w.norm1_bias, s.mean1, s.rstd1,
                                  norm = v.workspace.norm, *c.stream);
    }
    c.kernels->linear_backward_weight(dqkv, c.gather_rows(norm, v.workspace.gathered), g.qkv_weight,
                                      g.qkv_bias, *c.stream);
  }
}

// dattention (B*T, c) -> dqkv (B*T, 3c), through QK-norm where there is one.
void Block::attention_core_backward(const Views& v, const TensorView& dattention,
                                    const TensorView& dqkv) const {
  const LayerContext& c = *context_;
  const BlockParameters& w = v.weights;
  const BlockParameters& g = v.gradients;
  const BlockSaved& s = v.saved;
  const TensorView normed = w.q_norm_weight && s.qkv_normed ? s.qkv_normed : qk_normed(v);
  // The gradient of a score is P (dP - delta), dP from v and delta from the output: where v and the
  // output were rounded apart, their difference is mostly rounding.
  if (c.sizes.rebuild_attention)
    c.kernels->attention(as_qkv(normed), {}, as_heads(s.attention), s.lse, *c.stream);
  c.kernels->attention_backward(as_heads(dattention), as_qkv(normed), {}, as_heads(s.attention),
                                s.lse, as_qkv(dqkv), *c.stream);
  if (!w.q_norm_weight) return;
  c.kernels->qk_norm_backward(as_qkv(dqkv), as_qkv(s.qkv), w.q_norm_weight, w.k_norm_weight,
                              s.qk_stats, as_qkv(dqkv), g.q_norm_weight, g.q_norm_bias,
                              g.k_norm_weight, g.k_norm_bias, *c.stream);
}

// What was rebuilt is in a buffer that is reused before backward_weight runs.
void Block::keep_linear_inputs(const Views& v) const {
  const auto keep = [&](const TensorView& from, const TensorView& to) {
    if (to) context_->kernels->cast(from, to, *context_->stream);
  };
  keep(v.saved.norm1, v.deferred.norm1);
  keep(v.saved.attention, v.deferred.attention);
  keep(v.saved.norm2, v.deferred.norm2);
  keep(v.saved.gelu, v.deferred.gelu);
}

}  // namespace voltapile
