// AdamW where the optimizer lives in host memory: one pass over memory, vectorised for the
// processor that runs it. The CPU device's Kernels::adamw is the same code, so both homes give the
// same bits.
#pragma once
#include <span>
#include <string_view>

#include "voltapile/base/tensor_view.hpp"
#include "voltapile/base/thread_pool.hpp"
#include "voltapile/device/kernels.hpp"

namespace voltapile::host {

// Moments in a byte each: after "8-bit Optimizers via Block-wise Quantization" (Dettmers, Lewis,
// Shleifer, Zettlemoyer, ICLR 2022), sections 1.3 (dynamic tree) and 2 (blocks; no sign bit for v).
// A block of kQuantiseBlock elements shares a scale, its greatest magnitude. A code j > 0 stands
// for
//   scale * 10^(e - E + 1) * (0.1 + 0.9 (j - 2^e + 1) / 2^e),  e = floor(log2 j),
// so level e cuts a decade into 2^e steps: E = 8 levels for v; E = 7 for m, whose highest bit is
// the sign. Unlike the paper's, a code is the upper end of its step, not the middle, so the
// greatest magnitude is exact and what was decoded is encoded as the same codes. Rounded to the
// nearest; but a v above zero never becomes 0, which would take the brake off its m. All bytes zero
// are moments of zero; a block whose greatest magnitude is below 2^-126 becomes that.
struct Moments8 {
  TensorView m_codes, v_codes;    // (n) u8
  TensorView m_scales, v_scales;  // (ceil(n / kQuantiseBlock)) f32
};

// One flat buffer (or shard) of n elements. The rule is that of Kernels::adamw, in f32 with fused
// multiply-adds, in an order of operations that no processor changes:
//   g = gradients * multiplier
//   m = fma(beta1, m, (1 - beta1) g);   v = fma(beta2, v, ((1 - beta2) g) g)
//   master = fma(master, decay, -(step_size m / fma(sqrt(v), inverse_root_correction, eps)))
//   ema = fma(d, ema, (1 - d) master)
// with, of the element's run, step_size = lr / (1 - beta1^t) * rate and
// decay = fma(-(lr * weight_decay), rate * run.decay, 1); inverse_root_correction =
// 1 / sqrt(1 - beta2^t); t = state->adam_step + 1 (these in f64, rounded once). What lies in no run
// keeps all but the weights.
struct AdamWTask {
  TensorView gradients;  // (n) f32, f16 or bf16
  TensorView master;     // (n) f32
  TensorView m, v;       // (n) f32; empty where `moments` has them
  Moments8 moments;  // empty views where m and v have them; else decoded to f32 and encoded anew
  TensorView ema;    // (n) f32, optional: ema = d * ema + (1 - d) * master after the update
  double ema_decay = 0;  // d
  // (n) f32, f16 or bf16, optional: master rounded to nearest even. Written also where nothing is
  // updated: outside of all runs, and where the step is skipped. May be the master itself, or the
  // memory of gradients of the same type.
  TensorView weights;
  std::span<const UpdateRun> runs;
  AdamW rules;
  const StepState* state = nullptr;  // read when the task runs
};

// Returns when all is done. No result depends on the number of threads.
void adamw(ThreadPool& pool, const AdamWTask& task);

// Moments between their two forms, for checkpoints: m, v (n) f32.
void decode_moments(ThreadPool& pool, const Moments8& moments, TensorView m, TensorView v);
void encode_moments(ThreadPool& pool, TensorView m, TensorView v, const Moments8& moments);

// What adamw() uses on this processor: "avx512", "avx2" (both with FMA and F16C) or "portable".
std::string_view instruction_set();

}  // namespace voltapile::host
