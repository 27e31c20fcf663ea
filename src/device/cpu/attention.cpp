#include <limits>

#include "voltapile/device/shapes.hpp"

#include "gemm.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "vector_math.hpp"

namespace voltapile::cpu {
namespace {

// Queries whose scores against all keys are held at a time (at most): the scores stay in L2.
constexpr int64_t kMostQueries = 128;
// Rows of scores start on whole vectors and are worked on to the end of the last one.
constexpr int64_t kVector = 16;

struct Extents {
  int64_t batch, tokens, heads, dim;              // of one sample: its tokens without padding
  int64_t stride() const { return heads * dim; }  // between tokens of `out`
  int64_t padded() const { return pieces(tokens, kVector) * kVector; }
  // Queries of a block: blocks of one height, so that the last is not a sliver.
  int64_t queries() const { return pieces(tokens, pieces(tokens, kMostQueries)); }
};
Extents extents_of(const TensorView& qkv) {
  return {qkv.shape[0], qkv.shape[1], qkv.shape[3], qkv.shape[4]};
}

// A (tokens, dim) matrix of one head in the computing type: where it is, or gathered in `room`,
// which then moves on.
template <class T>
Operand<Acc<T>> head_matrix(const T* from, int64_t stride, Extents e, Acc<T>*& room) {
  if constexpr (std::is_same_v<T, Acc<T>>) {
    return {from, stride};
  } else {
    Acc<T>* to = room;
    room += e.tokens * e.dim;
    for (int64_t t = 0; t < e.tokens; ++t) convert_run(from + t * stride, e.dim, to + t * e.dim);
    return {to, e.dim};
  }
}
template <class A>
Operand<A> rows_from(Operand<A> a, int64_t row) {
  return {a.data + row * a.stride, a.stride, a.layout};
}
template <class A>
Operand<A> transposed(Operand<A> a) {
  return {a.data, a.stride, Layout::transposed};
}

// A result of one head: computed where it belongs, or in `room` and rounded by store().
template <class T>
class HeadResult {
 public:
  HeadResult(T* to, int64_t stride, int64_t dim, Acc<T>*& room, int64_t rows)
      : to_(to), stride_(stride), dim_(dim) {
    if constexpr (std::is_same_v<T, Acc<T>>) {
      data = to;
      data_stride = stride;
    } else {
      data = room;
      data_stride = dim;
      room += rows * dim;
    }
  }
  void store(int64_t rows) const {
    if constexpr (!std::is_same_v<T, Acc<T>>)
      for (int64_t r = 0; r < rows; ++r) convert_run(data + r * dim_, dim_, to_ + r * stride_);
  }
  Acc<T>* data;
  int64_t data_stride;

 private:
  T* to_;
  int64_t stride_, dim_;
};

template <class A>
A scale_of(int64_t dim) {
  return static_cast<A>(1 / std::sqrt(static_cast<double>(dim)));
}

// scores -> exp(scale * score - max), over n of `padded` columns; returns their sum. `shift`
// becomes the greatest scaled score.
template <class A>
A softmax_row(A* scores, int64_t n, int64_t padded, A scale, A& shift) {
  for (int64_t i = n; i < padded; ++i) scores[i] = -std::numeric_limits<A>::infinity();
  A most = scores[0];
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < padded; ++i) most = scores[i] > most ? scores[i] : most;
  shift = most * scale;
  const A less = shift;
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < padded; ++i) {
    const A e = exp_of(scores[i] * scale - less);
    scores[i] = e;
    sum += e;
  }
  return sum;
}

template <class T>
void attention_head(const T* qkv, T* out, Acc<T>* lse, Extents e) {
  using A = Acc<T>;
  const int64_t n = e.tokens, d = e.dim, in_stride = 3 * e.stride(), wide = e.padded();
  A* scores = scratch<A>(Scratch::piece, e.queries() * (wide + d + 1) + 3 * n * d);
  A* sums = scores + e.queries() * wide;
  A* room = sums + e.queries();
  const auto q = head_matrix(qkv, in_stride, e, room);
  const auto k = head_matrix(qkv + e.stride(), in_stride, e, room);
  const auto v = head_matrix(qkv + 2 * e.stride(), in_stride, e, room);
  const A scale = scale_of<A>(d);
  for (int64_t begin = 0; begin < n; begin += e.queries()) {
    const int64_t m = std::min(e.queries(), n - begin);
    A* spare = room;
    const HeadResult<T> result(out + begin * e.stride(), e.stride(), d, spare, m);
    multiply(m, n, d, rows_from(q, begin), transposed(k), Into::assign, scores, wide);
    for (int64_t r = 0; r < m; ++r)
      sums[r] = softmax_row(scores + r * wide, n, wide, scale, lse[begin + r]);
    multiply(m, d, n, {scores, wide}, v, Into::assign, result.data, result.data_stride);
    for (int64_t r = 0; r < m; ++r) {
      const A inverse = 1 / sums[r];
      A* row = result.data + r * result.data_stride;
      for (int64_t c = 0; c < d; ++c) row[c] *= inverse;
      lse[begin + r] += std::log(sums[r]);
    }
    result.store(m);
  }
}

// scores and dP of a row become P and scale * P * (dP - dot).
template <class A>
void score_gradient_row(A* __restrict scores, A* __restrict dp, int64_t padded, A scale, A lse,
                        A dot) {
  for (int64_t i = 0; i < padded; ++i) {
    const A probability = exp_of(scores[i] * scale - lse);
    scores[i] = probability;
    dp[i] = scale * probability * (dp[i] - dot);
  }
}

// With P = exp(scale * Q K^T - lse): dV = P^T dO, dP = dO V^T,
// dS = scale * P * (dP - rowsum(dO * O)), dQ = dS K, dK = dS^T Q.
template <class T>
void attention_backward_head(const T* dout, const T* qkv, const T* out, const Acc<T>* lse, T* dqkv,
                             Extents e) {
  using A = Acc<T>;
  const int64_t n = e.tokens, d = e.dim, stride = e.stride(), in_stride = 3 * stride;
  const int64_t wide = e.padded();
  A* p = scratch<A>(Scratch::piece, e.queries() * (2 * wide + d) + 7 * n * d);
  A* dp = p + e.queries() * wide;
  A* room = dp + e.queries() * wide;
  const auto q = head_matrix(qkv, in_stride, e, room);
  const auto k = head_matrix(qkv + stride, in_stride, e, room);
  const auto v = head_matrix(qkv + 2 * stride, in_stride, e, room);
  const auto gradient = head_matrix(dout, stride, e, room);
  const auto value = head_matrix(out, stride, e, room);
  const HeadResult<T> dk(dqkv + stride, in_stride, d, room, n);
  const HeadResult<T> dv(dqkv + 2 * stride, in_stride, d, room, n);
  const A scale = scale_of<A>(d);
  for (int64_t begin = 0; begin < n; begin += e.queries()) {
    const int64_t m = std::min(e.queries(), n - begin);
    A* spare = room;
    const HeadResult<T> dq(dqkv + begin * in_stride, in_stride, d, spare, m);
    const auto dout_rows = rows_from(gradient, begin), out_rows = rows_from(value, begin);
    multiply(m, n, d, rows_from(q, begin), transposed(k), Into::assign, p, wide);
    multiply(m, n, d, dout_rows, transposed(v), Into::assign, dp, wide);
    for (int64_t r = 0; r < m; ++r) {
      const A* left = dout_rows.data + r * dout_rows.stride;
      const A* right = out_rows.data + r * out_rows.stride;
      A dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t c = 0; c < d; ++c) dot += left[c] * right[c];
      for (int64_t i = n; i < wide; ++i) p[r * wide + i] = dp[r * wide + i] = 0;
      score_gradient_row(p + r * wide, dp + r * wide, wide, scale, lse[begin + r], dot);
    }
    const Into into = begin == 0 ? Into::assign : Into::accumulate;
    multiply(n, d, m, transposed<A>({p, wide}), dout_rows, into, dv.data, dv.data_stride);
    multiply(n, d, m, transposed<A>({dp, wide}), rows_from(q, begin), into, dk.data,
             dk.data_stride);
    multiply(m, d, n, {dp, wide}, k, Into::assign, dq.data, dq.data_stride);
    dq.store(m);
  }
  dk.store(n);
  dv.store(n);
}

template <class T>
void clear_rows(T* to, int64_t rows, int64_t stride, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) std::fill_n(to + r * stride, columns, T(0));
}

// body(first element of the head in qkv, in out, and in lse; the extents of its tokens without
// padding; how many tokens are padding)
template <class F>
void for_heads(ThreadPool& pool, const Extents& e, const int32_t* lengths, F&& body) {
  for_pieces(pool, e.batch * e.heads, 1, [&](int64_t index, int64_t) {
    const int64_t b = index / e.heads, h = index % e.heads;
    const int64_t at = b * e.tokens * e.stride() + h * e.dim;
    Extents own = e;
    if (lengths) {
      VP_CHECK(1 <= lengths[b] && lengths[b] <= e.tokens,
               "attention: sample {} has a length of {}, expected 1 to {}", b, lengths[b],
               e.tokens);
      own.tokens = lengths[b];
    }
    body(at + 2 * b * e.tokens * e.stride(), at, index * e.tokens, own, e.tokens - own.tokens);
  });
}

}  // namespace

void CpuKernels::attention(TensorView qkv, TensorView lengths, TensorView out, TensorView lse,
                           Stream& stream) {
  shapes::attention(qkv, lengths, out, lse);
  launch(qkv.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    using A = Acc<T>;
    for_heads(pool_, extents_of(qkv), optional<int32_t>(lengths),
              [&](int64_t in, int64_t at, int64_t row, const Extents& e, int64_t padding) {
                attention_head(qkv.as<T>() + in, out.as<T>() + at, lse.as<A>() + row, e);
                clear_rows(out.as<T>() + at + e.tokens * e.stride(), padding, e.stride(), e.dim);
                std::fill_n(lse.as<A>() + row + e.tokens, padding, A(0));
              });
  });
}

void CpuKernels::attention_backward(TensorView dout, TensorView qkv, TensorView lengths,
                                    TensorView out, TensorView lse, TensorView dqkv,
                                    Stream& stream) {
  shapes::attention_backward(dout, qkv, lengths, out, lse, dqkv);
  launch(qkv.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    for_heads(pool_, extents_of(qkv), optional<int32_t>(lengths),
              [&](int64_t in, int64_t at, int64_t row, const Extents& e, int64_t padding) {
                attention_backward_head(dout.as<T>() + at, qkv.as<T>() + in, out.as<T>() + at,
                                        lse.as<Acc<T>>() + row, dqkv.as<T>() + in, e);
                for (int64_t part = 0; part < 3; ++part)
                  clear_rows(dqkv.as<T>() + in + (3 * e.tokens + part) * e.stride(), padding,
                             3 * e.stride(), e.dim);
              });
  });
}

}  // namespace voltapile::cpu
