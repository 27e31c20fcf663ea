#include "gemm.hpp"

// Of Eigen 3.4's own headers.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <Eigen/Core>
#pragma GCC diagnostic pop

#ifdef VOLTAPILE_ONEDNN
#include <dnnl.h>

#include "voltapile/base/error.hpp"
// Of the OpenMP runtime that oneDNN brings along: a setting of the calling thread.
extern "C" void omp_set_num_threads(int threads);
#endif

namespace voltapile::cpu {
namespace {

template <class A>
using RowMajor = Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class A>
using ConstMap = Eigen::Map<const RowMajor<A>, 0, Eigen::OuterStride<>>;

template <class A, class Left, class Right>
void store_product(const Left& left, const Right& right, Into into, A* c, int64_t c_stride) {
  Eigen::Map<RowMajor<A>, 0, Eigen::OuterStride<>> out(c, left.rows(), right.cols(),
                                                       Eigen::OuterStride<>(c_stride));
  if (into == Into::assign) out.noalias() = left * right;
  else out.noalias() += left * right;
}

template <class A>
void multiply_by_eigen(int64_t m, int64_t n, int64_t k, Operand<A> a, Operand<A> b, Into into, A* c,
                       int64_t c_stride) {
  const bool at = a.layout == Layout::transposed, bt = b.layout == Layout::transposed;
  ConstMap<A> left(a.data, at ? k : m, at ? m : k, Eigen::OuterStride<>(a.stride));
  ConstMap<A> right(b.data, bt ? n : k, bt ? k : n, Eigen::OuterStride<>(b.stride));
  if (at && bt) store_product(left.transpose(), right.transpose(), into, c, c_stride);
  else if (at) store_product(left.transpose(), right, into, c, c_stride);
  else if (bt) store_product(left, right.transpose(), into, c, c_stride);
  else store_product(left, right, into, c, c_stride);
}

}  // namespace

void multiply(int64_t m, int64_t n, int64_t k, Operand<float> a, Operand<float> b, Into into,
              float* c, int64_t c_stride) {
#ifdef VOLTAPILE_ONEDNN
  // Pieces are divided over our own threads, so that their borders do not depend on the number.
  static thread_local const bool single = (omp_set_num_threads(1), true);
  (void)single;
  const dnnl_status_t status =
      dnnl_sgemm(a.layout == Layout::transposed ? 'T' : 'N',
                 b.layout == Layout::transposed ? 'T' : 'N', m, n, k, 1.0f, a.data, a.stride,
                 b.data, b.stride, into == Into::accumulate ? 1.0f : 0.0f, c, c_stride);
  VP_CHECK(status == dnnl_success, "oneDNN refused a product of ({}, {}) and ({}, {}): status {}",
           m, k, k, n, static_cast<int>(status));
#else
  multiply_by_eigen(m, n, k, a, b, into, c, c_stride);
#endif
}

void multiply(int64_t m, int64_t n, int64_t k, Operand<double> a, Operand<double> b, Into into,
              double* c, int64_t c_stride) {
  multiply_by_eigen(m, n, k, a, b, into, c, c_stride);
}

}  // namespace voltapile::cpu
