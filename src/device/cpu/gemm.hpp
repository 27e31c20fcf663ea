// Matrix products of one thread, row-major. oneDNN for float where the build has it, else Eigen.
#pragma once
#include <cstdint>

namespace voltapile::cpu {

enum class Layout { plain, transposed };  // how an operand lies in memory
enum class Into { assign, accumulate };

template <class A>
struct Operand {
  const A* data;
  int64_t stride;  // between rows in memory
  Layout layout = Layout::plain;
};

// c (m,n) = or += a (m,k) b (k,n); rows of c are c_stride apart.
void multiply(int64_t m, int64_t n, int64_t k, Operand<float> a, Operand<float> b, Into into,
              float* c, int64_t c_stride);
void multiply(int64_t m, int64_t n, int64_t k, Operand<double> a, Operand<double> b, Into into,
              double* c, int64_t c_stride);

}  // namespace voltapile::cpu
