#include "voltapile/device/host/adamw.hpp"

#include <cmath>

#include "voltapile/device/shapes.hpp"

#include "../host/adamw_rule.hpp"
#include "kernels.hpp"
#include "parallel.hpp"

namespace voltapile::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements

// For f64, which no run but a test's trains in.
template <class G>
void adamw_f64(ThreadPool& pool, const G* gradients, double* master, double* m, double* v,
               double* weights, int64_t n, std::span<const UpdateRun> runs, const AdamW& rules,
               const StepState& state) {
  const auto f = host::factors_of<double>(rules, state);
  for_pieces(pool, n, kGrain, [&](int64_t begin, int64_t end) {
    for (const UpdateRun& run : runs) {
      const auto alike = host::factors_of(f, run);
      for (int64_t i = std::max(begin, run.begin); i < std::min(end, run.end); ++i)
        host::update(convert<G, double>(gradients[i]), f, alike, master[i], m[i], v[i]);
    }
    std::copy(master + begin, master + end, weights + begin);
  });
}

template <class A>
void average_all(ThreadPool& pool, const A* x, A keep, A* average, int64_t n) {
  for_pieces(pool, n, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      average[i] = host::averaged(average[i], x[i], keep, 1 - keep);
  });
}

}  // namespace

void CpuKernels::adamw(TensorView gradients, TensorView master, TensorView m, TensorView v,
                       TensorView weights, std::span<const UpdateRun> runs, const AdamW& rules,
                       const StepState* state, Stream& stream) {
  shapes::adamw(gradients, master, m, v, weights);
  VP_CHECK(weights.dtype == DType::f64 || gradients.dtype != DType::f64,
           "adamw: gradients of f64 for weights of {}", name_of(weights.dtype));
  on(stream).enqueue([=, this] {
    if (state->skip) return;
    if (weights.dtype != DType::f64) {
      host::AdamWTask task;
      task.gradients = gradients;
      task.master = master;
      task.m = m;
      task.v = v;
      task.weights = weights;
      task.runs = runs;
      task.rules = rules;
      task.state = state;
      host::adamw(pool_, task);
      return;
    }
    dispatch(gradients.dtype, [&](auto tag) {
      using G = decltype(tag);
      adamw_f64(pool_, gradients.as<G>(), master.as<double>(), m.as<double>(), v.as<double>(),
                weights.as<double>(), master.elements(), runs, rules, *state);
    });
  });
}

void CpuKernels::average(TensorView x, double decay, const StepState* state, TensorView average,
                         Stream& stream) {
  shapes::average(x, average);
  on(stream).enqueue([=, this] {
    if (state->skip) return;
    if (x.dtype == DType::f64)
      average_all(pool_, x.as<double>(), decay, average.as<double>(), x.elements());
    else
      average_all(pool_, x.as<float>(), static_cast<float>(decay), average.as<float>(),
                  x.elements());
  });
}

}  // namespace voltapile::cpu
