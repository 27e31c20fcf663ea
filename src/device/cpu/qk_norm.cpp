#include "voltapile/device/shapes.hpp"

#include "kernels.hpp"
#include "layer_norm_row.hpp"
#include "parallel.hpp"

namespace voltapile::cpu {
namespace {

// qkv as (R, 3, H, D): q and k of every head are rows of D.
struct Extents {
  int64_t rows, heads, dim;
  int64_t columns() const { return 3 * heads * dim; }
};

template <class T>
void qk_norm_all(ThreadPool& pool, const T* qkv, const T* const gamma[2], const T* const beta[2],
                 double eps, T* out, Acc<T>* stats, Extents e) {
  using A = Acc<T>;
  for_pieces(pool, e.rows, row_grain(e.columns()), [&](int64_t begin, int64_t end) {
    A* room = scratch<A>(Scratch::piece, 6 * e.dim);
    const A *scale[2], *shift[2];
    for (int part = 0; part < 2; ++part) {
      scale[part] = widened(gamma[part], e.dim, room + part * e.dim);
      shift[part] = widened(beta[part], e.dim, room + (2 + part) * e.dim);
    }
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < 2 * e.heads; ++i) {
        const int64_t at = r * e.columns() + i * e.dim, part = i / e.heads;
        const A* in = widened(qkv + at, e.dim, room + 4 * e.dim);
        A* normalised = result_at(out + at, room + 5 * e.dim);
        const auto statistics = row_statistics(in, e.dim, static_cast<A>(eps));
        stats[(r * 2 * e.heads + i) * 2] = statistics.mean;
        stats[(r * 2 * e.heads + i) * 2 + 1] = statistics.rstd;
        normalise_row(in, e.dim, statistics, scale[part], shift[part], normalised);
        round_to(normalised, e.dim, out + at);
      }
      const int64_t v = r * e.columns() + 2 * e.heads * e.dim;
      std::copy_n(qkv + v, e.heads * e.dim, out + v);
    }
  });
}

template <class T>
void qk_norm_backward_all(ThreadPool& pool, const T* dout, const T* qkv, const T* const gamma[2],
                          const Acc<T>* stats, T* dqkv, Acc<T>* const dgamma[2],
                          Acc<T>* const dbeta[2], Extents e) {
  using A = Acc<T>;
  const auto body = [&](int64_t begin, int64_t end, A* sums) {
    A* room = scratch<A>(Scratch::piece, 5 * e.dim);
    const A* scale[2];
    for (int part = 0; part < 2; ++part)
      scale[part] = widened(gamma[part], e.dim, room + part * e.dim);
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < 2 * e.heads; ++i) {
        const int64_t at = r * e.columns() + i * e.dim, part = i / e.heads;
        const A* gradient = widened(dout + at, e.dim, room + 2 * e.dim);
        const A* in = widened(qkv + at, e.dim, room + 3 * e.dim);
        A* out = result_at(dqkv + at, room + 4 * e.dim);
        const A* s = stats + (r * 2 * e.heads + i) * 2;
        A* sum = sums ? sums + part * 2 * e.dim : nullptr;
        row_gradient<A>(gradient, in, e.dim, {s[0], s[1]}, scale[part], nullptr, out, sum,
                        sum ? sum + e.dim : nullptr);
        round_to(out, e.dim, dqkv + at);
      }
      const int64_t v = r * e.columns() + 2 * e.heads * e.dim;
      if (dqkv != dout) std::copy_n(dout + v, e.heads * e.dim, dqkv + v);
    }
  };
  if (!dgamma[0]) {
    for_pieces(pool, e.rows, row_grain(e.columns()),
               [&](int64_t begin, int64_t end) { body(begin, end, nullptr); });
    return;
  }
  sum_over_rows<A>(pool, e.rows, row_grain(e.columns(), 32768), 4 * e.dim, body,
                   [&](int64_t c, A sum) {
                     const int64_t part = c / (2 * e.dim), column = c % (2 * e.dim);
                     if (column < e.dim) dgamma[part][column] += sum;
                     else dbeta[part][column - e.dim] += sum;
                   });
}

Extents extents_of(const TensorView& qkv) {
  return {qkv.shape[0] * qkv.shape[1], qkv.shape[3], qkv.shape[4]};
}

}  // namespace

void CpuKernels::qk_norm(TensorView qkv, TensorView gamma_q, TensorView beta_q, TensorView gamma_k,
                         TensorView beta_k, double eps, TensorView out, TensorView stats,
                         Stream& stream) {
  shapes::qk_norm("qk_norm", qkv, gamma_q, gamma_k, out, stats);
  launch(qkv.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    const T* const gamma[2] = {gamma_q.as<T>(), gamma_k.as<T>()};
    const T* const beta[2] = {beta_q.as<T>(), beta_k.as<T>()};
    qk_norm_all(pool_, qkv.as<T>(), gamma, beta, eps, out.as<T>(), stats.as<Acc<T>>(),
                extents_of(qkv));
  });
}

void CpuKernels::qk_norm_backward(TensorView dout, TensorView qkv, TensorView gamma_q,
                                  TensorView gamma_k, TensorView stats, TensorView dqkv,
                                  TensorView dgamma_q, TensorView dbeta_q, TensorView dgamma_k,
                                  TensorView dbeta_k, Stream& stream) {
  shapes::qk_norm("qk_norm_backward", qkv, gamma_q, gamma_k, dqkv, stats);
  shapes::expect("qk_norm_backward", "dout", dout, qkv.dtype, qkv.elements());
  shapes::qk_norm_sums(qkv, dgamma_q, dbeta_q, dgamma_k, dbeta_k);
  launch(qkv.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    using A = Acc<T>;
    const T* const gamma[2] = {gamma_q.as<T>(), gamma_k.as<T>()};
    A* const dgamma[2] = {optional<A>(dgamma_q), optional<A>(dgamma_k)};
    A* const dbeta[2] = {optional<A>(dbeta_q), optional<A>(dbeta_k)};
    qk_norm_backward_all(pool_, dout.as<T>(), qkv.as<T>(), gamma, stats.as<A>(), dqkv.as<T>(),
                         dgamma, dbeta, extents_of(qkv));
  });
}

}  // namespace voltapile::cpu
