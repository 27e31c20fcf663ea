#include "norm_rows.cuh"

namespace voltapile::cuda {
namespace {

template <class T>
struct Apply {
  const T *x, *gamma, *beta;
  const float *mean, *rstd;
  T* y;
  int64_t columns;

  template <int kWidth>
  __device__ __forceinline__ void pack(int64_t row, int64_t column) const {
    const auto in = load_once<T, kWidth>(x + row * columns + column);
    float v[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) v[k] = widen(in.v[k]);
    store(y + row * columns + column,
          normalised_pack<T>(v, mean[row], rstd[row], gamma, beta, column));
  }
};

}  // namespace

void CudaKernels::layer_norm(TensorView x, TensorView gamma, TensorView beta, double eps,
                             TensorView y, TensorView mean, TensorView rstd, Stream& stream) {
  shapes::layer_norm("layer_norm", x, gamma, beta, y, mean, rstd);
  visit(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Branch<T> none{nullptr, nullptr, nullptr, Keep({}), nullptr};
    const Norm<T> norm{as<T>(gamma), as<T>(beta),     static_cast<float>(eps),
                       as<T>(y),     as<float>(mean), as<float>(rstd)};
    norm_rows<false>(as<T>(x), none, norm, x.rows(), x.columns(), handle_of(stream));
  });
}

void CudaKernels::layer_norm_apply(TensorView x, TensorView gamma, TensorView beta, TensorView mean,
                                   TensorView rstd, TensorView y, Stream& stream) {
  shapes::layer_norm("layer_norm_apply", x, gamma, beta, y, mean, rstd);
  visit(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Apply<T> op{as<T>(x),        as<T>(gamma), as<T>(beta), as<float>(mean),
                      as<float>(rstd), as<T>(y),     x.columns()};
    visit_width<T>(wide_rows<T>(x.columns(), {op.x, op.gamma, op.beta, op.y}), [&](auto width) {
      each_pack<width()>(op, x.rows(), x.columns(), handle_of(stream));
    });
  });
}

}  // namespace voltapile::cuda
