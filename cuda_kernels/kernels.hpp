// The GPU's kernels: one file per family of operations, like the CPU twins. Every call checks its
// shapes and enqueues on the stream; none allocates after its first use.
#pragma once
#include <memory>

#include "voltapile/device/kernels.hpp"

#include "context.hpp"
#include "stream.hpp"

namespace voltapile::cuda {

class MatrixProducts;  // gemm.hpp

class CudaKernels final : public Kernels {
 public:
  explicit CudaKernels(Context& context);
  ~CudaKernels() override;

  void fill(TensorView t, double value, Stream& stream) override;
  void cast(TensorView from, TensorView to, Stream& stream) override;
  void add(TensorView a, TensorView b, TensorView out, Stream& stream) override;
  void linear(TensorView x, TensorView w, TensorView b, TensorView y, Stream& stream) override;
  void linear_gelu(TensorView x, TensorView w, TensorView b, TensorView pre, TensorView y,
                   Stream& stream) override;
  void linear_backward_input(TensorView dy, TensorView w, TensorView dx, Stream& stream) override;
  void linear_backward_input_gelu(TensorView dy, TensorView w, TensorView pre, TensorView dpre,
                                  Stream& stream) override;
  void linear_backward_weight(TensorView dy, TensorView x, TensorView dw, TensorView db,
                              Stream& stream) override;
  void gelu(TensorView pre, TensorView y, Stream& stream) override;
  void layer_norm(TensorView x, TensorView gamma, TensorView beta, double eps, TensorView y,
                  TensorView mean, TensorView rstd, Stream& stream) override;
  void layer_norm_backward(TensorView dy, TensorView x, TensorView gamma, TensorView mean,
                           TensorView rstd, TensorView residual, TensorView dx, TensorView dgamma,
                           TensorView dbeta, Stream& stream) override;
  void layer_norm_apply(TensorView x, TensorView gamma, TensorView beta, TensorView mean,
                        TensorView rstd, TensorView y, Stream& stream) override;
  void residual(TensorView x, TensorView branch, TensorView bias, TensorView scale,
                const DropPath& drop, TensorView y, Stream& stream) override;
  void residual_layer_norm(TensorView x, TensorView branch, TensorView bias, TensorView scale,
                           const DropPath& drop, TensorView gamma, TensorView beta, double eps,
                           TensorView y, TensorView h, TensorView mean, TensorView rstd,
                           Stream& stream) override;
  void residual_backward(TensorView dy, TensorView branch, TensorView bias, TensorView scale,
                         const DropPath& drop, TensorView dbranch, TensorView dbias,
                         TensorView dscale, Stream& stream) override;
  void attention(TensorView qkv, TensorView lengths, TensorView out, TensorView lse,
                 Stream& stream) override;
  void attention_backward(TensorView dout, TensorView qkv, TensorView lengths, TensorView out,
                          TensorView lse, TensorView dqkv, Stream& stream) override;
  void qk_norm(TensorView qkv, TensorView gamma_q, TensorView beta_q, TensorView gamma_k,
               TensorView beta_k, double eps, TensorView out, TensorView stats,
               Stream& stream) override;
  void qk_norm_backward(TensorView dout, TensorView qkv, TensorView gamma_q, TensorView gamma_k,
                        TensorView stats, TensorView dqkv, TensorView dgamma_q, TensorView dbeta_q,
                        TensorView dgamma_k, TensorView dbeta_k, Stream& stream) override;
  void patchify(TensorView pictures, std::span<const double> mean, std::span<const double> std,
                int64_t patch_height, int64_t patch_width, TensorView patches,
                Stream& stream) override;
  void add_position(TensorView tokens, TensorView class_token, TensorView position, TensorView out,
                    Stream& stream) override;
  void add_position_backward(TensorView dout, TensorView dtokens, TensorView dclass,
                             TensorView dposition, Stream& stream) override;
  void pool(TensorView x, bool mean, TensorView pooled, Stream& stream) override;
  void pool_backward(TensorView dpooled, bool mean, TensorView dx, Stream& stream) override;
  void logits_max(TensorView logits, int64_t first_class, int64_t classes, TensorView max,
                  Stream& stream) override;
  void cross_entropy_sums(TensorView logits, int64_t first_class, const Targets&, TensorView max,
                          TensorView sums, Stream& stream) override;
  void cross_entropy_loss(TensorView sums, int64_t valid, TensorView total,
                          Stream& stream) override;
  void cross_entropy_backward(TensorView logits, int64_t first_class, const Targets&,
                              TensorView max, TensorView sums, double factor,
                              const StepState* state, TensorView dlogits, Stream& stream) override;
  void count_before_label(TensorView logits, int64_t first_class, const Targets&, TensorView max,
                          TensorView sums, TensorView rank, Stream& stream) override;
  void count_correct(TensorView rank, int64_t valid, TensorView totals, Stream& stream) override;
  void sum_squares(TensorView gradients, std::span<const NormPiece> pieces, TensorView slots,
                   TensorView first_bad, Stream& stream) override;
  void finish_norm(TensorView slots, TensorView first_bad, const NormRules&, StepState* state,
                   StepState* next, Stream& stream) override;
  void adamw(TensorView gradients, TensorView master, TensorView m, TensorView v,
             TensorView weights, std::span<const UpdateRun> runs, const AdamW&,
             const StepState* state, Stream& stream) override;
  void average(TensorView x, double decay, const StepState* state, TensorView average,
               Stream& stream) override;
  void quantise_8bit(TensorView x, const Rounding&, TensorView codes, TensorView scales,
                     Stream& stream) override;
  void dequantise_8bit(TensorView codes, TensorView scales, TensorView y, Stream& stream) override;
  void dropout(TensorView x, const Dropout&, TensorView y, Stream& stream) override;

 private:
  Context& context_;
  std::unique_ptr<MatrixProducts> products_;
};

// The GPU's clock by now_seconds(). The two drift apart by tens of microseconds a second.
class GpuClock {
 public:
  explicit GpuClock(Context& context);
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;
  // Compares them anew, on a stream of its own beside whatever runs; marks from now on follow.
  void align();
  void mark(double* seconds, cudaStream_t stream) const;

 private:
  cudaStream_t stream_ = nullptr;
  Buffer reading_;
  double offset_seconds_ = 0;  // seconds = ticks * 1e-9 + offset
};

// The context of a CUDA device; null for any other device.
Context* context_of(Device& device);

}  // namespace voltapile::cuda
