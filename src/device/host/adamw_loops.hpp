// The loops over a vector type V, which the including file defines in its own unnamed namespace and
// instruction set. Per element, with f16 gradients and weights: 14 bytes read and 14 written (the
// weights not read first where they are streamed); bound by memory.
//
// V: kWidth, Float; load(const T*), store(T*, Float), stream(T*, Float, Float) for 2 kWidth
// elements at an address that is a multiple of their size, set, mul, div, sqrt, fma (a b + c), fms
// (a b - c), fence.
#pragma once
#include "adamw_code.hpp"
#include "moments8_loops.hpp"

namespace voltapile::host {
namespace {

template <class T>
[[gnu::always_inline]] inline float widen(T value) {
  return static_cast<float>(value);
}

template <class G, class W>
struct Pointers {
  const G* gradients;
  float* __restrict master, * __restrict m, * __restrict v, * __restrict ema;
  W* weights;  // may be where the gradients are
};

template <class V>
struct Constants {
  using F = typename V::Float;
  F multiplier, beta1, beta2, rest1, rest2, inverse_root_correction, eps, step_size, decay, keep,
      rest;
};

template <class G, class W>
[[gnu::always_inline]] inline void update_one(const Pointers<G, W>& p, int64_t i,
                                              const Factors<float>& f, const Run& run) {
  update(widen(p.gradients[i]), f, run.factors, p.master[i], p.m[i], p.v[i]);
  if (p.ema) p.ema[i] = averaged(p.ema[i], p.master[i], run.ema_keep, run.ema_rest);
  if (p.weights) p.weights[i] = static_cast<W>(p.master[i]);
}

// Gives the new master.
template <class V, class G, class W>
[[gnu::always_inline]] inline typename V::Float update_vector(const Pointers<G, W>& p, int64_t i,
                                                              const Constants<V>& c) {
  const auto g = V::mul(V::load(p.gradients + i), c.multiplier);
  const auto m = V::fma(c.beta1, V::load(p.m + i), V::mul(c.rest1, g));
  const auto v = V::fma(c.beta2, V::load(p.v + i), V::mul(V::mul(c.rest2, g), g));
  const auto denominator = V::fma(V::sqrt(v), c.inverse_root_correction, c.eps);
  const auto master =
      V::fms(V::load(p.master + i), c.decay, V::div(V::mul(c.step_size, m), denominator));
  V::store(p.m + i, m);
  V::store(p.v + i, v);
  V::store(p.master + i, master);
  if (p.ema) V::store(p.ema + i, V::fma(c.keep, V::load(p.ema + i), V::mul(c.rest, master)));
  return master;
}

// Elements before the first at which a stream may begin.
template <class V, class W>
int64_t unaligned(const W* weights, int64_t n) {
  constexpr uintptr_t kBlock = 2 * V::kWidth * sizeof(W);
  const uintptr_t over = reinterpret_cast<uintptr_t>(weights) % kBlock;
  return over == 0 ? 0 : std::min(n, static_cast<int64_t>((kBlock - over) / sizeof(W)));
}

template <class V, class G, class W>
void update_run(const Run& run, const Factors<float>& f) {
  const Pointers<G, W> p = {static_cast<const G*>(run.gradients), run.master, run.m, run.v, run.ema,
                            static_cast<W*>(run.weights)};
  constexpr int64_t kPair = 2 * V::kWidth;
  int64_t i = 0;
  if constexpr (V::kWidth > 1) {
    const Constants<V> c = {V::set(f.multiplier),
                            V::set(f.beta1),
                            V::set(f.beta2),
                            V::set(f.rest1),
                            V::set(f.rest2),
                            V::set(f.inverse_root_correction),
                            V::set(f.eps),
                            V::set(run.factors.step_size),
                            V::set(run.factors.decay),
                            V::set(run.ema_keep),
                            V::set(run.ema_rest)};
    if (p.weights && run.store == Store::streamed) {
      for (const int64_t head = unaligned<V>(p.weights, run.n); i < head; ++i)
        update_one(p, i, f, run);
      for (; i + kPair <= run.n; i += kPair) {
        const auto first = update_vector<V>(p, i, c),
                   second = update_vector<V>(p, i + V::kWidth, c);
        V::stream(p.weights + i, first, second);
      }
    }
    for (; i + V::kWidth <= run.n; i += V::kWidth) {
      const auto master = update_vector<V>(p, i, c);
      if (p.weights) V::store(p.weights + i, master);
    }
  }
#pragma GCC ivdep
  for (; i < run.n; ++i) update_one(p, i, f, run);
}

template <class V, class W>
void round_run(const float* __restrict master, void* to, int64_t n, Store store) {
  W* __restrict weights = static_cast<W*>(to);
  constexpr int64_t kPair = 2 * V::kWidth;
  int64_t i = 0;
  if constexpr (V::kWidth > 1) {
    if (store == Store::streamed) {
      for (const int64_t head = unaligned<V>(weights, n); i < head; ++i)
        weights[i] = static_cast<W>(master[i]);
      for (; i + kPair <= n; i += kPair)
        V::stream(weights + i, V::load(master + i), V::load(master + i + V::kWidth));
    }
    for (; i + V::kWidth <= n; i += V::kWidth) V::store(weights + i, V::load(master + i));
  }
#pragma GCC ivdep
  for (; i < n; ++i) weights[i] = static_cast<W>(master[i]);
}

template <class V>
constexpr Code code_of(std::string_view name) {
  return {
      name,
      {{update_run<V, float, float>, update_run<V, float, Half>, update_run<V, float, BFloat16>},
       {update_run<V, Half, float>, update_run<V, Half, Half>, update_run<V, Half, BFloat16>},
       {update_run<V, BFloat16, float>, update_run<V, BFloat16, Half>,
        update_run<V, BFloat16, BFloat16>}},
      {round_run<V, float>, round_run<V, Half>, round_run<V, BFloat16>},
      {decode_run<V, Map::sign>, encode_run<V, Map::sign>},
      {decode_run<V, Map::no_sign>, encode_run<V, Map::no_sign>},
      V::fence};
}

}  // namespace
}  // namespace voltapile::host
