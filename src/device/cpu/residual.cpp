#include "voltapile/base/philox.hpp"
#include "voltapile/device/shapes.hpp"

#include "kernels.hpp"
#include "layer_norm_row.hpp"
#include "parallel.hpp"

namespace voltapile::cpu {
namespace {

// What a row's branch is multiplied with; asked in row order, so that a sample draws once.
class Keep {
 public:
  explicit Keep(const DropPath& drop) : drop_(drop) {}
  float operator()(int64_t row) {
    if (drop_.rate == 0) return 1;
    const int64_t sample = drop_.state->inputs.first_sample + drop_.sample_offset +
                           (drop_.row_offset + row) / drop_.rows_per_sample;
    if (sample != sample_) {
      sample_ = sample;
      const auto words =
          random_words(drop_.seed, Purpose::drop_path, drop_.item, static_cast<uint64_t>(sample));
      factor_ = uniform01(words[0]) >= drop_.rate ? 1 / (1 - drop_.rate) : 0;
    }
    return factor_;
  }

 private:
  DropPath drop_;
  int64_t sample_ = -1;
  float factor_ = 1;
};

// y = x + keep * scale * (branch + bias); null bias and scale are left out.
template <class A>
void residual_row(const A* x, const A* branch, const A* bias, const A* scale, A keep,
                  int64_t columns, A* y) {
  if (bias && scale) {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) y[c] = x[c] + keep * scale[c] * (branch[c] + bias[c]);
  } else if (bias) {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) y[c] = x[c] + keep * (branch[c] + bias[c]);
  } else if (scale) {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) y[c] = x[c] + keep * scale[c] * branch[c];
  } else {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) y[c] = x[c] + keep * branch[c];
  }
}

template <class T>
struct NormAfter {
  const T *gamma, *beta;
  double eps;
  T* h;
  Acc<T>*mean, *rstd;
};

template <class T>
void residual_all(ThreadPool& pool, const T* x, const T* branch, const T* bias, const T* scale,
                  const DropPath& drop, T* y, const NormAfter<T>* norm, int64_t rows,
                  int64_t columns) {
  using A = Acc<T>;
  for_pieces(pool, rows, row_grain(columns), [&](int64_t begin, int64_t end) {
    A* room = scratch<A>(Scratch::piece, 7 * columns);
    const A* add = bias ? widened(bias, columns, room) : nullptr;
    const A* times = scale ? widened(scale, columns, room + columns) : nullptr;
    const A* gamma = norm ? widened(norm->gamma, columns, room + 2 * columns) : nullptr;
    const A* beta = norm ? widened(norm->beta, columns, room + 3 * columns) : nullptr;
    Keep keep(drop);
    for (int64_t r = begin; r < end; ++r) {
      const A* in = widened(x + r * columns, columns, room + 4 * columns);
      const A* side = widened(branch + r * columns, columns, room + 5 * columns);
      A* out = result_at(y + r * columns, room + 6 * columns);
      residual_row(in, side, add, times, static_cast<A>(keep(r)), columns, out);
      round_to(out, columns, y + r * columns);
      if (!norm) continue;
      // Of the rounded y, as a layer norm on its own would read it.
      const A* sum = widened(y + r * columns, columns, room + 6 * columns);
      const auto statistics = row_statistics(sum, columns, static_cast<A>(norm->eps));
      norm->mean[r] = statistics.mean;
      norm->rstd[r] = statistics.rstd;
      A* normalised = result_at(norm->h + r * columns, room + 5 * columns);
      normalise_row(sum, columns, statistics, gamma, beta, normalised);
      round_to(normalised, columns, norm->h + r * columns);
    }
  });
}

template <class T>
void residual_backward_all(ThreadPool& pool, const T* dy, const T* branch, const T* bias,
                           const T* scale, const DropPath& drop, T* dbranch, Acc<T>* dbias,
                           Acc<T>* dscale, int64_t rows, int64_t columns) {
  using A = Acc<T>;
  const auto body = [&](int64_t begin, int64_t end, A* sums) {
    A* room = scratch<A>(Scratch::piece, 5 * columns);
    const A* add = bias && dscale ? widened(bias, columns, room) : nullptr;
    const A* times = scale ? widened(scale, columns, room + columns) : nullptr;
    Keep keep_of(drop);
    for (int64_t r = begin; r < end; ++r) {
      const A keep = static_cast<A>(keep_of(r));
      const A* gradient = widened(dy + r * columns, columns, room + 2 * columns);
      if (dscale) {
        const A* side = widened(branch + r * columns, columns, room + 3 * columns);
        A* sum = sums + columns;
        if (add) {
#pragma omp simd
          for (int64_t c = 0; c < columns; ++c) sum[c] += keep * gradient[c] * (side[c] + add[c]);
        } else {
#pragma omp simd
          for (int64_t c = 0; c < columns; ++c) sum[c] += keep * gradient[c] * side[c];
        }
      }
      A* out = dbranch ? result_at(dbranch + r * columns, room + 4 * columns) : room + 4 * columns;
      if (times) {
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) out[c] = keep * times[c] * gradient[c];
      } else {
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) out[c] = keep * gradient[c];
      }
      if (dbias) {
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) sums[c] += out[c];
      }
      if (dbranch) round_to(out, columns, dbranch + r * columns);
    }
  };
  if (!dbias && !dscale) {
    for_pieces(pool, rows, row_grain(columns),
               [&](int64_t begin, int64_t end) { body(begin, end, nullptr); });
    return;
  }
  sum_over_rows<A>(pool, rows, row_grain(columns, 32768), 2 * columns, body, [=](int64_t c, A sum) {
    if (c < columns) {
      if (dbias) dbias[c] += sum;
    } else if (dscale) {
      dscale[c - columns] += sum;
    }
  });
}

}  // namespace

void CpuKernels::residual(TensorView x, TensorView branch, TensorView bias, TensorView scale,
                          const DropPath& drop, TensorView y, Stream& stream) {
  shapes::residual("residual", x, branch, bias, scale, drop, y);
  launch(x.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    residual_all<T>(pool_, x.as<T>(), branch.as<T>(), optional<T>(bias), optional<T>(scale), drop,
                    y.as<T>(), nullptr, x.rows(), x.columns());
  });
}

void CpuKernels::residual_layer_norm(TensorView x, TensorView branch, TensorView bias,
                                     TensorView scale, const DropPath& drop, TensorView gamma,
                                     TensorView beta, double eps, TensorView y, TensorView h,
                                     TensorView mean, TensorView rstd, Stream& stream) {
  shapes::residual("residual_layer_norm", x, branch, bias, scale, drop, y);
  shapes::layer_norm("residual_layer_norm", y, gamma, beta, h, mean, rstd);
  launch(x.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    const NormAfter<T> norm{gamma.as<T>(), beta.as<T>(),      eps,
                            h.as<T>(),     mean.as<Acc<T>>(), rstd.as<Acc<T>>()};
    residual_all<T>(pool_, x.as<T>(), branch.as<T>(), optional<T>(bias), optional<T>(scale), drop,
                    y.as<T>(), &norm, x.rows(), x.columns());
  });
}

void CpuKernels::residual_backward(TensorView dy, TensorView branch, TensorView bias,
                                   TensorView scale, const DropPath& drop, TensorView dbranch,
                                   TensorView dbias, TensorView dscale, Stream& stream) {
  shapes::residual_backward(dy, branch, bias, scale, drop, dbranch, dbias, dscale);
  launch(dy.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    residual_backward_all<T>(pool_, dy.as<T>(), optional<T>(branch), optional<T>(bias),
                             optional<T>(scale), drop, optional<T>(dbranch),
                             optional<Acc<T>>(dbias), optional<Acc<T>>(dscale), dy.rows(),
                             dy.columns());
  });
}

}  // namespace voltapile::cpu
