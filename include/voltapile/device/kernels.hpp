// The layer-sized operations. All are asynchronous on the given stream, allocate nothing in steady
// state, and are deterministic: no result depends on the number of threads.
//
// Types: "working" tensors share one of f16, bf16, f32, f64; statistics, parameter gradients and
// losses have its accumulate_type (f32; f64 for f64), called "acc" below. Parameters (weights,
// biases, gamma, ...) are working. 16-bit tensors are read, computed on in f32, and rounded once
// when stored. A span or pointer passed in must stay valid until the device is gone (the engine
// owns them). R rows, C columns. An empty TensorView leaves an optional operand out.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "voltapile/base/tensor_view.hpp"
#include "voltapile/device/device.hpp"

namespace voltapile {

// What changes from step to step, on the device (engine writes `inputs` before a step; finish_norm
// the rest).
struct StepInputs {
  double learning_rate = 0;
  int64_t step = 0;          // number of this step, from 0
  int64_t first_sample = 0;  // run-wide index of the step's first sample
};
struct StepState {
  StepInputs inputs;
  // decided by finish_norm of the step before:
  double loss_scale = 1;   // gradients of this step are multiplied by it
  int64_t good_steps = 0;  // steps since the scale last changed
  int64_t adam_step = 0;   // updates done so far
  int64_t skipped_steps = 0;
  // decided by finish_norm of this step:
  double grad_norm = 0;   // unscaled, before clipping
  double multiplier = 0;  // what update multiplies stored gradients with: clip factor / loss_scale;
                          // with NormRules::for_next decided by the step before
  double loss = 0;        // mean over the step's samples
  int32_t skip = 0;       // 1: something was not finite; update does nothing
  int32_t bad_parameter = -1;  // id of the first parameter whose gradient was not finite
};
// How finish_norm treats the scale and clips.
struct NormRules {
  double clip = 0;  // 0 = off
  bool dynamic_scale = false;
  int64_t growth_interval = 2000;
  double max_scale = 16777216, min_scale = 1;
  bool for_next = false;  // this norm clips the next step, which has no dynamic scale
};
// Slots of the vector that is summed over the world between sum_squares and finish_norm (f64 each).
struct NormSlots {
  static constexpr int squares = 0, not_finite = 1, loss = 2, samples = 3, count = 4;
};

// Stochastic depth: sample s keeps its branch if uniform(seed, drop_path, item, s) >= rate; kept
// ones are divided by (1 - rate). s = state->inputs.first_sample + sample_offset + (row_offset +
// row) / rows_per_sample.
struct DropPath {
  float rate = 0;
  uint64_t seed = 0;
  uint32_t item = 0;                 // 2 * block + (0 attention | 1 mlp)
  const StepState* state = nullptr;  // on the device; may be null when rate is 0
  int64_t sample_offset = 0, row_offset = 0, rows_per_sample = 1;
};

// Dropout of single elements: element (r, c) of x (R, C) is kept if uniform(seed, dropout, item, k)
// >= rate, and is then divided by (1 - rate). k counts the elements of the whole run's tensor, of
// which x holds some rows and columns: k = (state->inputs.first_sample + sample_offset) *
// rows_per_sample * row_columns + (row_offset + r) * row_columns + column_offset + c. Its number is
// random_words(seed, dropout, item, k / 4)[k % 4].
struct Dropout {
  float rate = 0;
  uint64_t seed = 0;
  uint32_t item = 0;                 // names the place in the model
  const StepState* state = nullptr;  // on the device; may be null when rate is 0
  int64_t sample_offset = 0, row_offset = 0, rows_per_sample = 1;
  int64_t column_offset = 0, row_columns = 0;  // 0: x holds all columns of its rows
};

// Elements that share a scale in 8-bit tensors.
constexpr int64_t kQuantiseBlock = 256;
// How quantise_8bit rounds: without a seed to the nearest code, ties to even; with one up or down
// at random, so that the mean is right: up if (drawn + 1/2) / 65536 is less than the fraction.
// Element i draws half e % 2, low first, of random_words(seed, quantise, item, e / 8)[e / 2 % 4],
// e = step * 2^40 + first_index + i.
struct Rounding {
  std::optional<uint64_t> seed;
  uint32_t item = 0;                 // names the tensor
  const StepState* state = nullptr;  // on the device; each step draws anew. Null: as in step 0
  int64_t first_index = 0;           // of x within its tensor: whole blocks, below 2^40
};

struct Targets {
  TensorView labels;         // (B) i32, or
  TensorView probabilities;  // (B, K) f32 soft targets of the whole class range, summing to 1; a
                             // sample's label is then the first of its greatest ones
  float smoothing = 0;       // label smoothing over `classes`
  int64_t classes = 0;       // of the whole model, padding left out
};

struct AdamW {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
};
// Elements [begin, end) of a flat buffer; lists are sorted and disjoint.
struct Range {
  int64_t begin, end;
};
// Elements [begin, end) of a flat buffer that adamw changes, and how; lists are sorted and
// disjoint. What lies in no run is frozen.
struct UpdateRun {
  int64_t begin, end;
  double rate = 1;   // times the step's learning rate
  double decay = 0;  // times AdamW::weight_decay
  bool operator==(const UpdateRun&) const = default;
};
// A counted piece of a flat buffer for the norm: elements of one parameter.
struct NormPiece {
  int64_t begin, end;
  int32_t parameter;
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  // --- memory
  virtual void fill(TensorView t, double value, Stream&) = 0;      // any float type, or i32
  virtual void cast(TensorView from, TensorView to, Stream&) = 0;  // same shape, any float types
  virtual void add(TensorView a, TensorView b, TensorView out,
                   Stream&) = 0;  // out = a + b, working; out may alias

  // --- matrix products; weights are (out, in) as in PyTorch
  // y (R,N) = x (R,K) w (N,K)^T + b (N, optional)
  virtual void linear(TensorView x, TensorView w, TensorView b, TensorView y, Stream&) = 0;
  // pre (R,N) = x w^T + b; y = gelu(pre), exact (erf)
  virtual void linear_gelu(TensorView x, TensorView w, TensorView b, TensorView pre, TensorView y,
                           Stream&) = 0;
  // dx (R,K) = dy (R,N) w
  virtual void linear_backward_input(TensorView dy, TensorView w, TensorView dx, Stream&) = 0;
  // dpre (R,K) = (dy (R,N) w (N,K)) * gelu'(pre (R,K))
  virtual void linear_backward_input_gelu(TensorView dy, TensorView w, TensorView pre,
                                          TensorView dpre, Stream&) = 0;
  // dw (N,K) acc += dy^T x; db (N) acc += column sums of dy (optional)
  virtual void linear_backward_weight(TensorView dy, TensorView x, TensorView dw, TensorView db,
                                      Stream&) = 0;
  virtual void gelu(TensorView pre, TensorView y, Stream&) = 0;  // for selective recomputation

  // --- normalisation over the last dim; mean, rstd (R) acc
  virtual void layer_norm(TensorView x, TensorView gamma, TensorView beta, double eps, TensorView y,
                          TensorView mean, TensorView rstd, Stream&) = 0;
  // dx = residual (optional) + backward of layer_norm; dgamma, dbeta acc += (optional: empty leaves
  // them out). dx may alias residual.
  virtual void layer_norm_backward(TensorView dy, TensorView x, TensorView gamma, TensorView mean,
                                   TensorView rstd, TensorView residual, TensorView dx,
                                   TensorView dgamma, TensorView dbeta, Stream&) = 0;
  // Re-applies known statistics: y = (x - mean) * rstd * gamma + beta, for selective recomputation.
  virtual void layer_norm_apply(TensorView x, TensorView gamma, TensorView beta, TensorView mean,
                                TensorView rstd, TensorView y, Stream&) = 0;

  // --- residual branch: y = x + keep * scale * (branch + bias); bias, scale (C) optional; y may
  // alias x
  virtual void residual(TensorView x, TensorView branch, TensorView bias, TensorView scale,
                        const DropPath& drop, TensorView y, Stream&) = 0;
  // y as above, then h = layer_norm(y) with its statistics, in one pass over memory
  virtual void residual_layer_norm(TensorView x, TensorView branch, TensorView bias,
                                   TensorView scale, const DropPath& drop, TensorView gamma,
                                   TensorView beta, double eps, TensorView y, TensorView h,
                                   TensorView mean, TensorView rstd, Stream&) = 0;
  // dbranch = keep * scale * dy; dbias (C) acc += column sums of dbranch; dscale (C) acc += column
  // sums of keep * dy * (branch + bias). `branch` is read only with dscale. (dx = dy: the caller
  // reuses dy.) dbias and dscale may be empty; a later call with dbranch empty gives only those
  // (split backward).
  virtual void residual_backward(TensorView dy, TensorView branch, TensorView bias,
                                 TensorView scale, const DropPath& drop, TensorView dbranch,
                                 TensorView dbias, TensorView dscale, Stream&) = 0;

  // --- attention, scale 1/sqrt(D); qkv (B,T,3,H,D), out (B,T,H,D), lse (B,H,T) acc = log-sum-exp
  // of scaled scores. lengths (B) i32, optional: sample b has that many tokens, 1 to T; the others
  // are padding, which no token attends to: out, dqkv and lse of padding are written as zeros.
  virtual void attention(TensorView qkv, TensorView lengths, TensorView out, TensorView lse,
                         Stream&) = 0;
  virtual void attention_backward(TensorView dout, TensorView qkv, TensorView lengths,
                                  TensorView out, TensorView lse, TensorView dqkv, Stream&) = 0;
  // QK-norm: layer norm of q and k over D, v copied; stats (B*T, 2, H, 2) acc = (mean, rstd).
  // gamma, beta (D).
  virtual void qk_norm(TensorView qkv, TensorView gamma_q, TensorView beta_q, TensorView gamma_k,
                       TensorView beta_k, double eps, TensorView out, TensorView stats,
                       Stream&) = 0;
  // dqkv may alias dout. d* (D) acc +=, optional all together.
  virtual void qk_norm_backward(TensorView dout, TensorView qkv, TensorView gamma_q,
                                TensorView gamma_k, TensorView stats, TensorView dqkv,
                                TensorView dgamma_q, TensorView dbeta_q, TensorView dgamma_k,
                                TensorView dbeta_k, Stream&) = 0;

  // --- embedding
  // pictures (B,C,H,W) u8 -> patches (B*N, C*ph*pw) working, (pixel/255 - mean[c]) / std[c]
  virtual void patchify(TensorView pictures, std::span<const double> mean,
                        std::span<const double> std, int64_t patch_height, int64_t patch_width,
                        TensorView patches, Stream&) = 0;
  // out (B,T,C) = [class_token;] tokens (B,N,C) + position (T,C); class_token (C) optional (then T
  // = N + 1)
  virtual void add_position(TensorView tokens, TensorView class_token, TensorView position,
                            TensorView out, Stream&) = 0;
  // dtokens (B,N,C); dclass (C), dposition (T,C) acc +=, each optional
  virtual void add_position_backward(TensorView dout, TensorView dtokens, TensorView dclass,
                                     TensorView dposition, Stream&) = 0;
  // pooled (B,C) = mean over T of x (B,T,C), or token 0
  virtual void pool(TensorView x, bool mean, TensorView pooled, Stream&) = 0;
  virtual void pool_backward(TensorView dpooled, bool mean, TensorView dx,
                             Stream&) = 0;  // writes all of dx

  // --- cross-entropy over classes divided by tp; logits (B, L) working, local columns
  // first_class.. ; columns at or beyond targets.classes are padding. Between the calls the caller
  // reduces over tp.
  virtual void logits_max(TensorView logits, int64_t first_class, int64_t classes, TensorView max,
                          Stream&) = 0;  // (B) acc
  // sums (B,3) acc: sum of exp(logit - max); sum of target * (logit - max); logit - max of the
  // label (0 elsewhere)
  virtual void cross_entropy_sums(TensorView logits, int64_t first_class, const Targets&,
                                  TensorView max, TensorView sums, Stream&) = 0;
  // total (1) f64 += sum over samples of log(sums[0]) - sums[1]; samples at or beyond `valid` are
  // left out
  virtual void cross_entropy_loss(TensorView sums, int64_t valid, TensorView total, Stream&) = 0;
  // dlogits = (softmax - target) * factor * state->loss_scale (state may be null: 1); padding
  // columns get 0
  virtual void cross_entropy_backward(TensorView logits, int64_t first_class, const Targets&,
                                      TensorView max, TensorView sums, double factor,
                                      const StepState* state, TensorView dlogits, Stream&) = 0;
  // rank (B) acc: local columns that come before the label (a greater logit, or an equal one of a
  // lower class)
  virtual void count_before_label(TensorView logits, int64_t first_class, const Targets&,
                                  TensorView max, TensorView sums, TensorView rank, Stream&) = 0;
  // totals (2) f64 += number of samples below `valid` with rank < 1 and rank < 5
  virtual void count_correct(TensorView rank, int64_t valid, TensorView totals, Stream&) = 0;

  // --- optimizer
  // slots (NormSlots::count) f64: adds the squares and the number of not-finite elements over
  // `pieces`; first_bad (1) i32 becomes the smallest parameter id with one (unchanged if none).
  // Fixed summation order.
  virtual void sum_squares(TensorView gradients, std::span<const NormPiece> pieces,
                           TensorView slots, TensorView first_bad, Stream&) = 0;
  // From world-summed slots: loss, grad_norm, multiplier, skip of *state; scale, counters of *next.
  // With for_next the multiplier is next's, whose skip becomes 0, and its scale and good_steps are
  // left alone. first_bad (1) i32.
  virtual void finish_norm(TensorView slots, TensorView first_bad, const NormRules&,
                           StepState* state, StepState* next, Stream&) = 0;
  // One flat buffer (or shard) of n elements: g = gradients * multiplier; AdamW (Loshchilov &
  // Hutter 2019, decoupled decay, bias correction as PyTorch) on master, m, v (acc); weights
  // (working) = master rounded. What lies in no run keeps master, m and v, whatever its gradient
  // is. No-op if state->skip.
  virtual void adamw(TensorView gradients, TensorView master, TensorView m, TensorView v,
                     TensorView weights, std::span<const UpdateRun> runs, const AdamW&,
                     const StepState* state, Stream&) = 0;

  // average (n) acc = decay * average + (1 - decay) * x (n) acc, as one fused multiply-add of the
  // rounded product. No-op if state->skip.
  virtual void average(TensorView x, double decay, const StepState* state, TensorView average,
                       Stream&) = 0;

  // --- 8-bit storage
  // codes (n) u8, each a signed byte from -127 to 127; scales (ceil(n / kQuantiseBlock)) f32: the
  // greatest magnitude of a block, divided by 127. Computed in f32; code = x * (127 / greatest),
  // the quotient rounded down so that no product passes 127, then rounded. A block below 2^-119
  // counts as zeros. One with a number that is not finite gets a NaN as its scale, so that all of
  // it is read back as NaN.
  virtual void quantise_8bit(TensorView x, const Rounding&, TensorView codes, TensorView scales,
                             Stream&) = 0;
  // y (n) working = code * scale
  virtual void dequantise_8bit(TensorView codes, TensorView scales, TensorView y, Stream&) = 0;

  // --- y = x where kept, divided by (1 - rate), else 0; y may alias x. The same call on dy gives
  // dx.
  virtual void dropout(TensorView x, const Dropout&, TensorView y, Stream&) = 0;
};

}  // namespace voltapile
