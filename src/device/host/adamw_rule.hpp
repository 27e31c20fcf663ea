// AdamW of one element. Every multiplication whose result is added is a fused one here, so that
// nothing is left to the compiler to contract and all code paths give the same bits.
#pragma once
#include <cmath>

#include "voltapile/device/kernels.hpp"

namespace voltapile::host {

template <class A>
struct Factors {
  A multiplier, beta1, beta2, rest1, rest2, inverse_root_correction, eps;
  double step_size, shrink;  // of a run: times its rate; times its rate and decay
};
// Of one run of elements.
template <class A>
struct RunFactors {
  A step_size, decay;
};

template <class A>
Factors<A> factors_of(const AdamW& rules, const StepState& state) {
  const auto t = static_cast<double>(state.adam_step + 1);
  const double lr = state.inputs.learning_rate;
  const A beta1 = static_cast<A>(rules.beta1), beta2 = static_cast<A>(rules.beta2);
  return {static_cast<A>(state.multiplier),
          beta1,
          beta2,
          1 - beta1,
          1 - beta2,
          static_cast<A>(1 / std::sqrt(1 - std::pow(rules.beta2, t))),
          static_cast<A>(rules.eps),
          lr / (1 - std::pow(rules.beta1, t)),
          lr * rules.weight_decay};
}

template <class A>
RunFactors<A> factors_of(const Factors<A>& f, const UpdateRun& run) {
  return {static_cast<A>(f.step_size * run.rate),
          static_cast<A>(std::fma(-f.shrink, run.rate * run.decay, 1.0))};
}

// Always inlined: a copy compiled for one instruction set must not serve the others.
template <class A>
[[gnu::always_inline]] inline void update(A gradient, const Factors<A>& f, const RunFactors<A>& run,
                                          A& master, A& m, A& v) {
  const A g = gradient * f.multiplier;
  m = std::fma(f.beta1, m, f.rest1 * g);
  v = std::fma(f.beta2, v, f.rest2 * g * g);
  const A denominator = std::fma(std::sqrt(v), f.inverse_root_correction, f.eps);
  master = std::fma(master, run.decay, -(run.step_size * m / denominator));
}

template <class A>
[[gnu::always_inline]] inline A averaged(A ema, A master, A keep, A rest) {
  return std::fma(keep, ema, rest * master);
}

}  // namespace voltapile::host
