#include <cmath>

#include "voltapile/device/shapes.hpp"

#include "kernels.hpp"
#include "parallel.hpp"

namespace voltapile::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements
constexpr int64_t kRun = 1024;     // elements updated at a time, in L1

template <class A>
struct Factors {
  A multiplier, beta1, beta2, step_size, inverse_root_correction, eps, decay;  // decay: 1 - lr * wd
};

template <class A>
Factors<A> factors_of(const AdamW& rules, const StepState& state) {
  const auto t = static_cast<double>(state.adam_step + 1);
  const double lr = state.inputs.learning_rate;
  return {static_cast<A>(state.multiplier),
          static_cast<A>(rules.beta1),
          static_cast<A>(rules.beta2),
          static_cast<A>(lr / (1 - std::pow(rules.beta1, t))),
          static_cast<A>(1 / std::sqrt(1 - std::pow(rules.beta2, t))),
          static_cast<A>(rules.eps),
          static_cast<A>(1 - lr * rules.weight_decay)};
}

template <class A>
void update_run(const A* __restrict g, int64_t n, const Factors<A>& f, A decay,
                A* __restrict master, A* __restrict m, A* __restrict v) {
  const A rest1 = 1 - f.beta1, rest2 = 1 - f.beta2;
  for (int64_t i = 0; i < n; ++i) {
    const A gradient = g[i] * f.multiplier;
    const A first = f.beta1 * m[i] + rest1 * gradient;
    const A second = f.beta2 * v[i] + rest2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    master[i] = master[i] * decay -
                f.step_size * first / (std::sqrt(second) * f.inverse_root_correction + f.eps);
  }
}

template <class G, class T>
void adamw_all(ThreadPool& pool, const G* gradients, Acc<T>* master, Acc<T>* m, Acc<T>* v,
               T* weights, int64_t n, std::span<const Range> decayed, const AdamW& rules,
               const StepState& state) {
  using A = Acc<T>;
  if (state.skip) return;
  const Factors<A> f = factors_of<A>(rules, state);
  for_pieces(pool, n, kGrain, [&](int64_t begin, int64_t end) {
    A buffer[kRun];
    auto range = std::upper_bound(decayed.begin(), decayed.end(), begin,
                                  [](int64_t at, const Range& r) { return at < r.end; });
    for (int64_t at = begin; at < end;) {
      while (range != decayed.end() && range->end <= at) ++range;
      const bool inside = range != decayed.end() && range->begin <= at;
      const int64_t border = range == decayed.end() ? end : inside ? range->end : range->begin;
      const int64_t count = std::min({kRun, end - at, border - at});
      convert_run(gradients + at, count, buffer);
      update_run(buffer, count, f, inside ? f.decay : A(1), master + at, m + at, v + at);
      if (static_cast<const void*>(weights) != master)
        convert_run(master + at, count, weights + at);
      at += count;
    }
  });
}

}  // namespace

void CpuKernels::adamw(TensorView gradients, TensorView master, TensorView m, TensorView v,
                       TensorView weights, std::span<const Range> decayed, const AdamW& rules,
                       const StepState* state, Stream& stream) {
  shapes::adamw(gradients, master, m, v, weights);
  launch(weights.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    using A = Acc<T>;
    dispatch(gradients.dtype, [&](auto gradient_tag) {
      using G = decltype(gradient_tag);
      adamw_all(pool_, gradients.as<G>(), master.as<A>(), m.as<A>(), v.as<A>(), weights.as<T>(),
                master.elements(), decayed, rules, *state);
    });
  });
}

}  // namespace voltapile::cpu
