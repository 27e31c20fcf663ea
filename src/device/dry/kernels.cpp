#include "kernels.hpp"

#include "voltapile/device/shapes.hpp"

namespace voltapile::dry {
namespace {

double product_flops(const TensorView& rows_of, const TensorView& w) {
  return 2.0 * static_cast<double>(rows_of.rows()) * static_cast<double>(w.elements());
}
// Of one (T,T,D) product for every head of every sample.
double head_product_flops(const TensorView& qkv) {
  const auto tokens = static_cast<double>(qkv.shape[1]);
  return 2.0 * static_cast<double>(qkv.elements() / 3) * tokens;
}

}  // namespace

void DryKernels::count(const char* operation, double flops,
                       std::initializer_list<TensorView> operands) {
  KernelCount& entry = counters_.kernels[operation];
  ++entry.calls;
  entry.flops += flops;
  for (const TensorView& t : operands)
    if (t) entry.bytes += static_cast<double>(t.bytes());
}

void DryKernels::fill(TensorView t, double, Stream&) { count("fill", 0, {t}); }
void DryKernels::cast(TensorView from, TensorView to, Stream&) {
  shapes::expect("cast", "to", to, to.dtype, from.elements());
  count("cast", 0, {from, to});
}
void DryKernels::add(TensorView a, TensorView b, TensorView out, Stream&) {
  shapes::expect("add", "b", b, a.dtype, a.elements());
  shapes::expect("add", "out", out, a.dtype, a.elements());
  count("add", 0, {a, b, out});
}

void DryKernels::linear(TensorView x, TensorView w, TensorView b, TensorView y, Stream&) {
  shapes::linear("linear", x, w, b, y);
  count("linear", product_flops(x, w), {x, w, b, y});
}
void DryKernels::linear_gelu(TensorView x, TensorView w, TensorView b, TensorView pre, TensorView y,
                             Stream&) {
  shapes::linear("linear_gelu", x, w, b, y);
  shapes::expect("linear_gelu", "pre", pre, y.dtype, y.elements());
  count("linear_gelu", product_flops(x, w), {x, w, b, pre, y});
}
void DryKernels::linear_backward_input(TensorView dy, TensorView w, TensorView dx, Stream&) {
  shapes::linear_backward_input("linear_backward_input", dy, w, dx);
  count("linear_backward_input", product_flops(dy, w), {dy, w, dx});
}
void DryKernels::linear_backward_input_gelu(TensorView dy, TensorView w, TensorView pre,
                                            TensorView dpre, Stream&) {
  shapes::linear_backward_input("linear_backward_input_gelu", dy, w, dpre);
  shapes::expect("linear_backward_input_gelu", "pre", pre, dpre.dtype, dpre.elements());
  count("linear_backward_input_gelu", product_flops(dy, w), {dy, w, pre, dpre});
}
void DryKernels::linear_backward_weight(TensorView dy, TensorView x, TensorView dw, TensorView db,
                                        Stream&) {
  shapes::linear_backward_weight(dy, x, dw, db);
  count("linear_backward_weight", product_flops(dy, dw), {dy, x, dw, dw, db, db});
}
void DryKernels::gelu(TensorView pre, TensorView y, Stream&) {
  shapes::expect("gelu", "y", y, pre.dtype, pre.elements());
  count("gelu", 0, {pre, y});
}

void DryKernels::layer_norm(TensorView x, TensorView gamma, TensorView beta, double, TensorView y,
                            TensorView mean, TensorView rstd, Stream&) {
  shapes::layer_norm("layer_norm", x, gamma, beta, y, mean, rstd);
  count("layer_norm", 0, {x, gamma, beta, y, mean, rstd});
}
void DryKernels::layer_norm_backward(TensorView dy, TensorView x, TensorView gamma, TensorView mean,
                                     TensorView rstd, TensorView residual, TensorView dx,
                                     TensorView dgamma, TensorView dbeta, Stream&) {
  shapes::layer_norm_backward(dy, x, gamma, mean, rstd, residual, dx, dgamma, dbeta);
  count("layer_norm_backward", 0,
        {dy, x, gamma, mean, rstd, residual, dx, dgamma, dgamma, dbeta, dbeta});
}
void DryKernels::layer_norm_apply(TensorView x, TensorView gamma, TensorView beta, TensorView mean,
                                  TensorView rstd, TensorView y, Stream&) {
  shapes::layer_norm("layer_norm_apply", x, gamma, beta, y, mean, rstd);
  count("layer_norm_apply", 0, {x, gamma, beta, mean, rstd, y});
}

void DryKernels::residual(TensorView x, TensorView branch, TensorView bias, TensorView scale,
                          const DropPath& drop, TensorView y, Stream&) {
  shapes::residual("residual", x, branch, bias, scale, drop, y);
  count("residual", 0, {x, branch, bias, scale, y});
}
void DryKernels::residual_layer_norm(TensorView x, TensorView branch, TensorView bias,
                                     TensorView scale, const DropPath& drop, TensorView gamma,
                                     TensorView beta, double, TensorView y, TensorView h,
                                     TensorView mean, TensorView rstd, Stream&) {
  shapes::residual("residual_layer_norm", x, branch, bias, scale, drop, y);
  shapes::layer_norm("residual_layer_norm", y, gamma, beta, h, mean, rstd);
  count("residual_layer_norm", 0, {x, branch, bias, scale, gamma, beta, y, h, mean, rstd});
}
void DryKernels::residual_backward(TensorView dy, TensorView branch, TensorView bias,
                                   TensorView scale, const DropPath& drop, TensorView dbranch,
                                   TensorView dbias, TensorView dscale, Stream&) {
  shapes::residual_backward(dy, branch, bias, scale, drop, dbranch, dbias, dscale);
  count("residual_backward", 0,
        {dy, dscale ? branch : TensorView{}, bias, scale, dbranch, dbias, dbias, dscale, dscale});
}

// Padding is counted as if it were work: lengths lie on the device.
void DryKernels::attention(TensorView qkv, TensorView lengths, TensorView out, TensorView lse,
                           Stream&) {
  shapes::attention(qkv, lengths, out, lse);
  count("attention", 2 * head_product_flops(qkv), {qkv, lengths, out, lse});
}
void DryKernels::attention_backward(TensorView dout, TensorView qkv, TensorView lengths,
                                    TensorView out, TensorView lse, TensorView dqkv, Stream&) {
  shapes::attention_backward(dout, qkv, lengths, out, lse, dqkv);
  // The scores once more, and a product for each of dP, dV, dQ, dK.
  count("attention_backward", 5 * head_product_flops(qkv), {dout, qkv, lengths, out, lse, dqkv});
}
void DryKernels::qk_norm(TensorView qkv, TensorView gamma_q, TensorView beta_q, TensorView gamma_k,
                         TensorView beta_k, double, TensorView out, TensorView stats, Stream&) {
  shapes::qk_norm("qk_norm", qkv, gamma_q, gamma_k, out, stats);
  count("qk_norm", 0, {qkv, gamma_q, beta_q, gamma_k, beta_k, out, stats});
}
void DryKernels::qk_norm_backward(TensorView dout, TensorView qkv, TensorView gamma_q,
                                  TensorView gamma_k, TensorView stats, TensorView dqkv,
                                  TensorView dgamma_q, TensorView dbeta_q, TensorView dgamma_k,
                                  TensorView dbeta_k, Stream&) {
  shapes::qk_norm("qk_norm_backward", qkv, gamma_q, gamma_k, dqkv, stats);
  shapes::expect("qk_norm_backward", "dout", dout, qkv.dtype, qkv.elements());
  shapes::qk_norm_sums(qkv, dgamma_q, dbeta_q, dgamma_k, dbeta_k);
  count("qk_norm_backward", 0,
        {dout, qkv, gamma_q, gamma_k, stats, dqkv, dgamma_q, dbeta_q, dgamma_k, dbeta_k});
}

void DryKernels::patchify(TensorView pictures, std::span<const double> mean,
                          std::span<const double> std, int64_t patch_height, int64_t patch_width,
                          TensorView patches, Stream&) {
  shapes::patchify(pictures, mean.size(), std.size(), patch_height, patch_width, patches);
  count("patchify", 0, {pictures, patches});
}
void DryKernels::add_position(TensorView tokens, TensorView class_token, TensorView position,
                              TensorView out, Stream&) {
  shapes::add_position(tokens, class_token, position, out);
  count("add_position", 0, {tokens, class_token, position, out});
}
void DryKernels::add_position_backward(TensorView dout, TensorView dtokens, TensorView dclass,
                                       TensorView dposition, Stream&) {
  shapes::add_position_backward(dout, dtokens, dclass, dposition);
  count("add_position_backward", 0, {dout, dtokens, dclass, dclass, dposition, dposition});
}
void DryKernels::pool(TensorView x, bool mean, TensorView pooled, Stream&) {
  shapes::pool("pool", x, pooled);
  count("pool", 0, {mean ? x : pooled, pooled});
}
void DryKernels::pool_backward(TensorView dpooled, bool, TensorView dx, Stream&) {
  shapes::pool("pool_backward", dx, dpooled);
  count("pool_backward", 0, {dpooled, dx});
}

void DryKernels::logits_max(TensorView logits, int64_t, int64_t, TensorView max, Stream&) {
  shapes::logits_max(logits, max);
  count("logits_max", 0, {logits, max});
}
void DryKernels::cross_entropy_sums(TensorView logits, int64_t, const Targets& targets,
                                    TensorView max, TensorView sums, Stream&) {
  shapes::cross_entropy("cross_entropy_sums", logits, targets, max, sums);
  count("cross_entropy_sums", 0, {logits, targets.labels, targets.probabilities, max, sums});
}
void DryKernels::cross_entropy_loss(TensorView sums, int64_t, TensorView total, Stream&) {
  shapes::expect("cross_entropy_loss", "total", total, DType::f64, 1);
  count("cross_entropy_loss", 0, {sums, total, total});
}
void DryKernels::cross_entropy_backward(TensorView logits, int64_t, const Targets& targets,
                                        TensorView max, TensorView sums, double, const StepState*,
                                        TensorView dlogits, Stream&) {
  shapes::cross_entropy("cross_entropy_backward", logits, targets, max, sums);
  shapes::expect("cross_entropy_backward", "dlogits", dlogits, logits.dtype, logits.elements());
  count("cross_entropy_backward", 0,
        {logits, targets.labels, targets.probabilities, max, sums, dlogits});
}
void DryKernels::count_before_label(TensorView logits, int64_t, const Targets& targets,
                                    TensorView max, TensorView sums, TensorView rank, Stream&) {
  shapes::cross_entropy("count_before_label", logits, targets, max, sums);
  shapes::expect("count_before_label", "rank", rank, accumulate_type(logits.dtype), logits.rows());
  count("count_before_label", 0, {logits, targets.labels, targets.probabilities, max, sums, rank});
}
void DryKernels::count_correct(TensorView rank, int64_t, TensorView totals, Stream&) {
  shapes::expect("count_correct", "totals", totals, DType::f64, 2);
  count("count_correct", 0, {rank, totals, totals});
}

void DryKernels::sum_squares(TensorView gradients, std::span<const NormPiece>, TensorView slots,
                             TensorView first_bad, Stream&) {
  shapes::sum_squares("sum_squares", slots, first_bad);
  count("sum_squares", 0, {gradients, slots, slots, first_bad, first_bad});
}
void DryKernels::finish_norm(TensorView slots, TensorView first_bad, const NormRules&, StepState*,
                             StepState*, Stream&) {
  shapes::sum_squares("finish_norm", slots, first_bad);
  count("finish_norm", 0, {slots, first_bad});
}
void DryKernels::adamw(TensorView gradients, TensorView master, TensorView m, TensorView v,
                       TensorView weights, std::span<const UpdateRun>, const AdamW&,
                       const StepState*, Stream&) {
  shapes::adamw(gradients, master, m, v, weights);
  count("adamw", 0, {gradients, master, master, m, m, v, v, weights});
}

void DryKernels::quantise_8bit(TensorView x, const Rounding& rounding, TensorView codes,
                               TensorView scales, Stream&) {
  shapes::quantise("quantise_8bit", x, codes, scales);
  shapes::rounding(rounding);
  count("quantise_8bit", 0, {x, codes, scales});
}
void DryKernels::dequantise_8bit(TensorView codes, TensorView scales, TensorView y, Stream&) {
  shapes::quantise("dequantise_8bit", y, codes, scales);
  count("dequantise_8bit", 0, {codes, scales, y});
}
void DryKernels::average(TensorView x, double, const StepState*, TensorView average, Stream&) {
  shapes::average(x, average);
  count("average", 0, {x, average, average});
}

void DryKernels::dropout(TensorView x, const Dropout& drop, TensorView y, Stream&) {
  shapes::dropout(x, drop, y);
  count("dropout", 0, {x, y});
}

}  // namespace voltapile::dry
