#include "../shapes.hpp"
#include "gemm.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "vector_math.hpp"

namespace voltapile::cpu {
namespace {

// Queries whose scores against all keys are held at a time; their (kBlock, T) scores stay in L2.
constexpr int64_t kBlock = 64;

struct Extents {
  int64_t batch, tokens, heads, dim;
  int64_t stride() const { return heads * dim; }  // between tokens of `out`
};
Extents extents_of(const TensorView& qkv) {
  return {qkv.shape[0], qkv.shape[1], qkv.shape[3], qkv.shape[4]};
}

// Rows of one head, `stride` apart, to a dense (tokens, dim) matrix and back.
template <class T>
void gather(const T* from, int64_t stride, int64_t tokens, int64_t dim, Acc<T>* to) {
  for (int64_t t = 0; t < tokens; ++t) convert_run(from + t * stride, dim, to + t * dim);
}
template <class T>
void scatter(const Acc<T>* from, int64_t stride, int64_t tokens, int64_t dim, T* to) {
  for (int64_t t = 0; t < tokens; ++t) convert_run(from + t * dim, dim, to + t * stride);
}

template <class A>
A scale_of(int64_t dim) {
  return static_cast<A>(1 / std::sqrt(static_cast<double>(dim)));
}

// scores -> exp(scale * score - max); returns log-sum-exp of the scaled scores and the sum.
template <class A>
A softmax_row(A* scores, int64_t n, A scale, A& sum_out) {
  A most = scores[0];
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; ++i) most = scores[i] > most ? scores[i] : most;
  most *= scale;
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const A e = exp_of(scores[i] * scale - most);
    scores[i] = e;
    sum += e;
  }
  sum_out = sum;
  return most + std::log(sum);
}

template <class T>
void attention_head(const T* qkv, T* out, Acc<T>* lse, Extents e) {
  using A = Acc<T>;
  const int64_t n = e.tokens, d = e.dim, in_stride = 3 * e.stride();
  A* q = scratch<A>(Scratch::piece, 3 * n * d + kBlock * (n + d));
  A *k = q + n * d, *v = k + n * d, *scores = v + n * d, *result = scores + kBlock * n;
  gather(qkv, in_stride, n, d, q);
  gather(qkv + e.stride(), in_stride, n, d, k);
  gather(qkv + 2 * e.stride(), in_stride, n, d, v);
  const A scale = scale_of<A>(d);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t m = std::min(kBlock, n - begin);
    multiply(m, n, d, {q + begin * d, d}, {k, d, Layout::transposed}, Into::assign, scores, n);
    A inverse[kBlock];
    for (int64_t r = 0; r < m; ++r) {
      A sum;
      lse[begin + r] = softmax_row(scores + r * n, n, scale, sum);
      inverse[r] = 1 / sum;
    }
    multiply(m, d, n, {scores, n}, {v, d}, Into::assign, result, d);
    for (int64_t r = 0; r < m; ++r)
      for (int64_t c = 0; c < d; ++c) result[r * d + c] *= inverse[r];
    scatter(result, e.stride(), m, d, out + begin * e.stride());
  }
}

// With P = exp(scale * Q K^T - lse): dV = P^T dO, dP = dO V^T,
// dS = scale * P * (dP - rowsum(dO * O)), dQ = dS K, dK = dS^T Q.
template <class T>
void attention_backward_head(const T* dout, const T* qkv, const T* out, const Acc<T>* lse, T* dqkv,
                             Extents e) {
  using A = Acc<T>;
  const int64_t n = e.tokens, d = e.dim, stride = e.stride(), in_stride = 3 * stride;
  A* q = scratch<A>(Scratch::piece, 6 * n * d + kBlock * (2 * n + 2 * d));
  A *k = q + n * d, *v = k + n * d, *dk = v + n * d, *dv = dk + n * d, *gradient = dv + n * d;
  A *p = gradient + n * d, *dp = p + kBlock * n, *dq = dp + kBlock * n, *value = dq + kBlock * d;
  gather(qkv, in_stride, n, d, q);
  gather(qkv + stride, in_stride, n, d, k);
  gather(qkv + 2 * stride, in_stride, n, d, v);
  gather(dout, stride, n, d, gradient);
  const A scale = scale_of<A>(d);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t m = std::min(kBlock, n - begin);
    const A* dout_block = gradient + begin * d;
    gather(out + begin * stride, stride, m, d, value);
    multiply(m, n, d, {q + begin * d, d}, {k, d, Layout::transposed}, Into::assign, p, n);
    multiply(m, n, d, {dout_block, d}, {v, d, Layout::transposed}, Into::assign, dp, n);
    for (int64_t r = 0; r < m; ++r) {
      A dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t c = 0; c < d; ++c) dot += dout_block[r * d + c] * value[r * d + c];
      const A shift = lse[begin + r];
      A* __restrict p_row = p + r * n, * __restrict dp_row = dp + r * n;
      for (int64_t i = 0; i < n; ++i) {
        const A probability = exp_of(p_row[i] * scale - shift);
        p_row[i] = probability;
        dp_row[i] = scale * probability * (dp_row[i] - dot);
      }
    }
    const Into into = begin == 0 ? Into::assign : Into::accumulate;
    multiply(n, d, m, {p, n, Layout::transposed}, {dout_block, d}, into, dv, d);
    multiply(n, d, m, {dp, n, Layout::transposed}, {q + begin * d, d}, into, dk, d);
    multiply(m, d, n, {dp, n}, {k, d}, Into::assign, dq, d);
    scatter(dq, in_stride, m, d, dqkv + begin * in_stride);
  }
  scatter(dk, in_stride, n, d, dqkv + stride);
  scatter(dv, in_stride, n, d, dqkv + 2 * stride);
}

// body(first element of the head in qkv, in out, and in lse)
template <class F>
void for_heads(ThreadPool& pool, Extents e, F&& body) {
  for_pieces(pool, e.batch * e.heads, 1, [&](int64_t index, int64_t) {
    const int64_t b = index / e.heads, h = index % e.heads;
    const int64_t at = b * e.tokens * e.stride() + h * e.dim;
    body(at + 2 * b * e.tokens * e.stride(), at, index * e.tokens);
  });
}

}  // namespace

void CpuKernels::attention(TensorView qkv, TensorView out, TensorView lse, Stream& stream) {
  shapes::attention(qkv, out, lse);
  launch(qkv.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    const Extents e = extents_of(qkv);
    for_heads(pool_, e, [&](int64_t in, int64_t at, int64_t row) {
      attention_head(qkv.as<T>() + in, out.as<T>() + at, lse.as<Acc<T>>() + row, e);
    });
  });
}

void CpuKernels::attention_backward(TensorView dout, TensorView qkv, TensorView out, TensorView lse,
                                    TensorView dqkv, Stream& stream) {
  shapes::attention(qkv, out, lse);
  shapes::expect("attention_backward", "dout", dout, qkv.dtype, out.elements());
  shapes::expect("attention_backward", "dqkv", dqkv, qkv.dtype, qkv.elements());
  launch(qkv.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    const Extents e = extents_of(qkv);
    for_heads(pool_, e, [&](int64_t in, int64_t at, int64_t row) {
      attention_backward_head(dout.as<T>() + at, qkv.as<T>() + in, out.as<T>() + at,
                              lse.as<Acc<T>>() + row, dqkv.as<T>() + in, e);
    });
  });
}

}  // namespace voltapile::cpu
