#include "block.hpp"

namespace voltapile {

void Block::forward(const LayerMemory& memory, const MicroStep& step, const TensorView& x,
                    const TensorView& out) const {
  const Views v = bind(memory, x);
  const LayerContext& c = *context_;
  const BlockParameters& w = v.weights;
  const BlockSaved& s = v.saved;

  const TensorView norm1 = s.norm1 ? s.norm1 : v.workspace.norm;  // (R, C)
  c.kernels->layer_norm(x, w.norm1_weight, w.norm1_bias, kNormEpsilon, norm1, s.mean1, s.rstd1,
                        *c.stream);
  const TensorView branch1 = attention_branch(v);  // (R, C)

  const TensorView norm2 = s.norm2 ? s.norm2 : v.workspace.norm;  // (R, C)
  c.kernels->residual_layer_norm(x, branch1, w.proj_bias, w.scale1,
                                 drop_path(step, Branch::attention), w.norm2_weight, w.norm2_bias,
                                 kNormEpsilon, s.middle, norm2, s.mean2, s.rstd2, *c.stream);

  const TensorView gathered = c.gather_rows(norm2, v.workspace.gathered);  // (B*T, C)
  c.kernels->linear_gelu(gathered, w.fc1_weight, w.fc1_bias, s.fc1,        // (B*T, m)
                         s.gelu ? s.gelu : v.workspace.gelu, *c.stream);
  if (!out && !s.branch2) return;            // backward reads neither the product nor the output
  const TensorView branch2 = mlp_branch(v);  // (R, C)
  if (!out) return;
  c.kernels->residual(s.middle, branch2, w.fc2_bias, w.scale2, drop_path(step, Branch::mlp), out,
                      *c.stream);
}

// norm1 -> the attention's product before bias, LayerScale and residual, (R, C).
TensorView Block::attention_branch(const Views& v) const {
  const LayerContext& c = *context_;
  const BlockParameters& w = v.weights;
  const BlockSaved& s = v.saved;
  const TensorView norm1 = s.norm1 ? s.norm1 : v.workspace.norm;
  const TensorView gathered = c.gather_rows(norm1, v.workspace.gathered);   // (B*T, C)
  c.kernels->linear(gathered, w.qkv_weight, w.qkv_bias, s.qkv, *c.stream);  // (B*T, 3c)
  c.kernels->attention(as_qkv(qk_normed(v)), {}, as_heads(s.attention), s.lse, *c.stream);
  const TensorView summands = s.branch1 && !c.sizes.sequence ? s.branch1 : v.workspace.product;
  c.kernels->linear(s.attention, w.proj_weight, {}, summands, *c.stream);  // (B*T, C)
  return c.sum_to_rows(summands, s.branch1);
}

// gelu(fc1) -> the MLP's product before bias, LayerScale and residual, (R, C).
TensorView Block::mlp_branch(const Views& v) const {
  const LayerContext& c = *context_;
  const BlockSaved& s = v.saved;
  const TensorView summands = s.branch2 && !c.sizes.sequence ? s.branch2 : v.workspace.product;
  c.kernels->linear(s.gelu ? s.gelu : v.workspace.gelu, v.weights.fc2_weight, {}, summands,
                    *c.stream);  // (B*T, C)
  return c.sum_to_rows(summands, s.branch2);
}

// Computes what attention reads, (B*T, 3c): qkv itself, or with its queries and keys normalised.
TensorView Block::qk_normed(const Views& v) const {
  const BlockParameters& w = v.weights;
  if (!w.q_norm_weight) return v.saved.qkv;
  const TensorView normed = v.saved.qkv_normed ? v.saved.qkv_normed : v.workspace.qkv_normed;
  context_->kernels->qk_norm(as_qkv(v.saved.qkv), w.q_norm_weight, w.q_norm_bias, w.k_norm_weight,
                             w.k_norm_bias, kNormEpsilon, as_qkv(normed), v.saved.qk_stats,
                             *context_->stream);
  return normed;
}

}  // namespace voltapile
