#include "voltapile/device/shapes.hpp"

#include "kernels.hpp"
#include "layer_norm_row.hpp"
#include "parallel.hpp"

namespace voltapile::cpu {
namespace {

template <class T>
void layer_norm_all(ThreadPool& pool, const T* x, const T* gamma, const T* beta, double eps, T* y,
                    Acc<T>* mean, Acc<T>* rstd, bool known, int64_t rows, int64_t columns) {
  using A = Acc<T>;
  for_pieces(pool, rows, row_grain(columns), [&](int64_t begin, int64_t end) {
    A* room = scratch<A>(Scratch::piece, 4 * columns);
    const A* scale = widened(gamma, columns, room + 2 * columns);
    const A* shift = widened(beta, columns, room + 3 * columns);
    for (int64_t r = begin; r < end; ++r) {
      const A* in = widened(x + r * columns, columns, room);
      A* out = result_at(y + r * columns, room + columns);
      RowStatistics<A> statistics{};
      if (known) {
        statistics = {mean[r], rstd[r]};
      } else {
        statistics = row_statistics(in, columns, static_cast<A>(eps));
        mean[r] = statistics.mean;
        rstd[r] = statistics.rstd;
      }
      normalise_row(in, columns, statistics, scale, shift, out);
      round_to(out, columns, y + r * columns);
    }
  });
}

template <class T>
void layer_norm_backward_all(ThreadPool& pool, const T* dy, const T* x, const T* gamma,
                             const Acc<T>* mean, const Acc<T>* rstd, const T* residual, T* dx,
                             Acc<T>* dgamma, Acc<T>* dbeta, int64_t rows, int64_t columns) {
  using A = Acc<T>;
  const bool sums_wanted = dgamma || dbeta;
  const auto body = [&](int64_t begin, int64_t end, A* sums) {
    A* room = scratch<A>(Scratch::piece, 5 * columns);
    const A* scale = widened(gamma, columns, room);
    for (int64_t r = begin; r < end; ++r) {
      const A* gradient = widened(dy + r * columns, columns, room + columns);
      const A* in = widened(x + r * columns, columns, room + 2 * columns);
      const A* added =
          residual ? widened(residual + r * columns, columns, room + 3 * columns) : nullptr;
      A* out = result_at(dx + r * columns, room + 4 * columns);
      row_gradient(gradient, in, columns, {mean[r], rstd[r]}, scale, added, out, sums,
                   sums ? sums + columns : nullptr);
      round_to(out, columns, dx + r * columns);
    }
  };
  if (!sums_wanted) {
    for_pieces(pool, rows, row_grain(columns),
               [&](int64_t begin, int64_t end) { body(begin, end, nullptr); });
    return;
  }
  sum_over_rows<A>(pool, rows, row_grain(columns, 32768), 2 * columns, body, [=](int64_t c, A sum) {
    if (c < columns) {
      if (dgamma) dgamma[c] += sum;
    } else if (dbeta) {
      dbeta[c - columns] += sum;
    }
  });
}

}  // namespace

void CpuKernels::layer_norm(TensorView x, TensorView gamma, TensorView beta, double eps,
                            TensorView y, TensorView mean, TensorView rstd, Stream& stream) {
  shapes::layer_norm("layer_norm", x, gamma, beta, y, mean, rstd);
  launch(x.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    layer_norm_all(pool_, x.as<T>(), gamma.as<T>(), beta.as<T>(), eps, y.as<T>(), mean.as<Acc<T>>(),
                   rstd.as<Acc<T>>(), false, x.rows(), x.columns());
  });
}

void CpuKernels::layer_norm_apply(TensorView x, TensorView gamma, TensorView beta, TensorView mean,
                                  TensorView rstd, TensorView y, Stream& stream) {
  shapes::layer_norm("layer_norm_apply", x, gamma, beta, y, mean, rstd);
  launch(x.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    layer_norm_all(pool_, x.as<T>(), gamma.as<T>(), beta.as<T>(), 0, y.as<T>(), mean.as<Acc<T>>(),
                   rstd.as<Acc<T>>(), true, x.rows(), x.columns());
  });
}

void CpuKernels::layer_norm_backward(TensorView dy, TensorView x, TensorView gamma, TensorView mean,
                                     TensorView rstd, TensorView residual, TensorView dx,
                                     TensorView dgamma, TensorView dbeta, Stream& stream) {
  shapes::layer_norm_backward(dy, x, gamma, mean, rstd, residual, dx, dgamma, dbeta);
  launch(x.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    layer_norm_backward_all(pool_, dy.as<T>(), x.as<T>(), gamma.as<T>(), mean.as<Acc<T>>(),
                            rstd.as<Acc<T>>(), optional<T>(residual), dx.as<T>(),
                            optional<Acc<T>>(dgamma), optional<Acc<T>>(dbeta), x.rows(),
                            x.columns());
  });
}

}  // namespace voltapile::cpu
