#include <climits>

#include "workbench.hpp"

namespace voltapile::bench {
namespace {

TensorView first_bad(Workbench& b) { return b.filled(DType::i32, {1}, INT_MAX); }
TensorView slots(Workbench& b) { return b.filled(DType::f64, {NormSlots::count}, 1); }

// A model's parameters are many pieces, most of them matrices.
constexpr int64_t kPieces = 100;

Case sum_squares(Workbench& b) {
  const int64_t n = b.sizes().parameters, piece = n / kPieces;
  const TensorView gradients = b.acc({n}), sums = slots(b), bad = first_bad(b);
  std::vector<NormPiece>& pieces = b.lists().pieces.emplace_back();
  for (int64_t i = 0; i < kPieces; ++i)
    pieces.push_back({i * piece, (i + 1) * piece, static_cast<int32_t>(i)});
  return {"sum_squares", {n}, [=, &b, &pieces] {
            b.kernels().sum_squares(gradients, pieces, sums, bad, b.stream());
          }};
}

Case finish_norm(Workbench& b) {
  const TensorView sums = slots(b), bad = first_bad(b);
  StepState* const state = b.state();
  StepState* const next = b.state();
  NormRules rules;
  rules.clip = 1;
  return {"finish_norm", {NormSlots::count}, [=, &b] {
            b.kernels().finish_norm(sums, bad, rules, state, next, b.stream());
          }};
}

Case adamw(Workbench& b) {
  const int64_t n = b.sizes().parameters, piece = n / kPieces;
  const DType acc = accumulate_type(b.type());
  const TensorView gradients = b.acc({n}), master = b.acc({n}), m = b.acc({n}),
                   v = b.filled(acc, {n}, 1), weights = b.working({n});
  std::vector<UpdateRun>& runs = b.lists().runs.emplace_back();
  for (int64_t i = 0; i < kPieces; ++i)
    runs.push_back({i * piece, i + 1 == kPieces ? n : (i + 1) * piece, 1, i % 2 == 0 ? 1.0 : 0.0});
  const StepState* const state = b.state();
  return {"adamw", {n}, [=, &b, &runs] {
            b.kernels().adamw(gradients, master, m, v, weights, runs, AdamW{.weight_decay = 0.05},
                              state, b.stream());
          }};
}

Case average(Workbench& b) {
  const int64_t n = b.sizes().parameters;
  const TensorView x = b.acc({n}), mean = b.acc({n});
  const StepState* const state = b.state();
  return {"average", {n}, [=, &b] { b.kernels().average(x, 0.999, state, mean, b.stream()); }};
}

Case fill(Workbench& b) {
  const int64_t n = b.sizes().parameters;
  const TensorView t = b.acc({n});
  return {"fill", {n}, [=, &b] { b.kernels().fill(t, 0, b.stream()); }};
}

Case cast(Workbench& b) {
  const int64_t n = b.sizes().parameters;
  const TensorView from = b.acc({n}), to = b.working({n});
  return {"cast", {n}, [=, &b] { b.kernels().cast(from, to, b.stream()); }};
}

Case add(Workbench& b) {
  const int64_t rows = b.sizes().rows(), dim = b.sizes().dim;
  const TensorView x = b.working({rows, dim}), y = b.working({rows, dim}),
                   out = b.working({rows, dim});
  return {"add", {rows, dim}, [=, &b] { b.kernels().add(x, y, out, b.stream()); }};
}

}  // namespace

std::vector<Prepare> optimizer_cases() {
  return {sum_squares, finish_norm, adamw, average, fill, cast, add};
}

}  // namespace voltapile::bench
