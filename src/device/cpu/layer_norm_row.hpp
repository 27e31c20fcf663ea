// One row of a layer norm, forward; shared by layer_norm, residual_layer_norm and qk_norm.
#pragma once
#include <cmath>
#include <cstdint>

namespace voltapile::cpu {

template <class A>
struct RowStatistics {
  A mean, rstd;
};

template <class A>
inline RowStatistics<A> row_statistics(const A* x, int64_t columns, A eps) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < columns; ++c) sum += x[c];
  const A mean = sum / static_cast<A>(columns);
  A squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < columns; ++c) squares += (x[c] - mean) * (x[c] - mean);
  return {mean, A(1) / std::sqrt(squares / static_cast<A>(columns) + eps)};
}

template <class A>
inline void normalise_row(const A* x, int64_t columns, RowStatistics<A> s, const A* gamma,
                          const A* beta, A* y) {
#pragma omp simd
  for (int64_t c = 0; c < columns; ++c) y[c] = (x[c] - s.mean) * s.rstd * gamma[c] + beta[c];
}

// What a row contributes to its input's gradient: rstd * (g - mean(g) - xhat * mean(g xhat)) with
// g = dy gamma, plus `residual` where there is one (dx may be the same memory as it or
// dy). dgamma and dbeta (null: left out) are added to.
template <class A>
inline void row_gradient(const A* dy, const A* x, int64_t columns, RowStatistics<A> s,
                         const A* gamma, const A* residual, A* dx, A* dgamma, A* dbeta) {
  if (dgamma) {  // before dx, which may be dy
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      dgamma[c] += dy[c] * (x[c] - s.mean) * s.rstd;
      dbeta[c] += dy[c];
    }
  }
  A sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t c = 0; c < columns; ++c) {
    const A g = dy[c] * gamma[c];
    sum += g;
    dot += g * ((x[c] - s.mean) * s.rstd);
  }
  const A mean_g = sum / static_cast<A>(columns), mean_dot = dot / static_cast<A>(columns);
  if (residual) {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c)
      dx[c] =
          residual[c] + s.rstd * (dy[c] * gamma[c] - mean_g - (x[c] - s.mean) * s.rstd * mean_dot);
  } else {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c)
      dx[c] = s.rstd * (dy[c] * gamma[c] - mean_g - (x[c] - s.mean) * s.rstd * mean_dot);
  }
}

}  // namespace voltapile::cpu
