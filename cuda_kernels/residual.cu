#include "column_sums.cuh"
#include "norm_rows.cuh"

namespace voltapile::cuda {
namespace {

template <class T>
struct Residual {
  const T* x;
  Branch<T> branch;
  int64_t columns;

  template <int kWidth>
  __device__ __forceinline__ void pack(int64_t row, int64_t column) const {
    const int64_t at = row * columns + column;
    store(branch.y + at,
          residual_pack(load_once<T, kWidth>(x + at), load_once<T, kWidth>(branch.branch + at),
                        branch.bias, branch.scale, branch.keep(row), column));
  }
};

// dbranch = keep * scale * dy; sums of it and of keep * dy * (branch + bias). Null operands are
// left out.
template <class T>
struct ResidualTerms {
  static constexpr int kSums = 2, kUnroll = 2;
  using Row = float;  // keep
  template <int N>
  struct In {
    Pack<T, N> dy, branch;
  };
  const T *dy, *branch, *bias, *scale;
  Keep keep;
  T* dbranch;
  int64_t columns;

  __device__ Row row(int64_t r) const { return keep(r); }
  template <int N>
  __device__ __forceinline__ In<N> read(int64_t r, int64_t column) const {
    In<N> in{};
    in.dy = load_once<T, N>(dy + r * columns + column);
    if (branch) in.branch = load_once<T, N>(branch + r * columns + column);
    return in;
  }
  template <int N>
  __device__ __forceinline__ void use(const In<N>& in, Row keep_row, int64_t r, int64_t column,
                                      float (&sums)[kSums][N]) const {
    Pack<T, N> add{}, times{}, out;
    if (branch && bias) add = load<T, N>(bias + column);
    if (scale) times = load<T, N>(scale + column);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float kept = keep_row * widen(in.dy.v[k]);
      const float slope = scale ? kept * widen(times.v[k]) : kept;
      sums[0][k] += slope;
      if (branch) sums[1][k] = fmaf(kept, widen(in.branch.v[k]) + widen(add.v[k]), sums[1][k]);
      out.v[k] = narrow<T>(slope);
    }
    if (dbranch) store(dbranch + r * columns + column, out);
  }
};

}  // namespace

void CudaKernels::residual(TensorView x, TensorView branch, TensorView bias, TensorView scale,
                           const DropPath& drop, TensorView y, Stream& stream) {
  shapes::residual("residual", x, branch, bias, scale, drop, y);
  visit(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Branch<T> b{as<T>(branch), as<T>(bias), as<T>(scale), Keep(drop), as<T>(y)};
    const Residual<T> op{as<T>(x), b, x.columns()};
    const bool wide = wide_rows<T>(x.columns(), {op.x, b.branch, b.bias, b.scale, b.y});
    visit_width<T>(wide, [&](auto width) {
      each_pack<width()>(op, x.rows(), x.columns(), handle_of(stream));
    });
  });
}

void CudaKernels::residual_layer_norm(TensorView x, TensorView branch, TensorView bias,
                                      TensorView scale, const DropPath& drop, TensorView gamma,
                                      TensorView beta, double eps, TensorView y, TensorView h,
                                      TensorView mean, TensorView rstd, Stream& stream) {
  shapes::residual("residual_layer_norm", x, branch, bias, scale, drop, y);
  shapes::layer_norm("residual_layer_norm", y, gamma, beta, h, mean, rstd);
  visit(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Branch<T> b{as<T>(branch), as<T>(bias), as<T>(scale), Keep(drop), as<T>(y)};
    const Norm<T> norm{as<T>(gamma), as<T>(beta),     static_cast<float>(eps),
                       as<T>(h),     as<float>(mean), as<float>(rstd)};
    norm_rows<true>(as<T>(x), b, norm, x.rows(), x.columns(), handle_of(stream));
  });
}

void CudaKernels::residual_backward(TensorView dy, TensorView branch, TensorView bias,
                                    TensorView scale, const DropPath& drop, TensorView dbranch,
                                    TensorView dbias, TensorView dscale, Stream& stream) {
  shapes::residual_backward(dy, branch, bias, scale, drop, dbranch, dbias, dscale);
  if (!dbranch && !dbias && !dscale) return;
  if (!dbranch && !dscale && !scale && drop.rate == 0) {
    add_column_sums(context_, dy, dbias, stream);
    return;
  }
  visit(dy.dtype, [&](auto tag) {
    using T = decltype(tag);
    const ResidualTerms<T> terms{as<T>(dy),   dscale ? as<T>(branch) : nullptr,
                                 as<T>(bias), as<T>(scale),
                                 Keep(drop),  as<T>(dbranch),
                                 dy.columns()};
    const bool wide = wide_rows<T>(
        dy.columns(), {terms.dy, terms.branch, terms.bias, terms.scale, terms.dbranch});
    visit_width<T>(wide, [&](auto width) {
      sum_strips<width()>(context_, terms, dy.rows(), dy.columns(),
                          {{as<float>(dbias), as<float>(dscale)}, 2}, stream);
    });
  });
}

}  // namespace voltapile::cuda
