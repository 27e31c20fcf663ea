#include "rig.hpp"

namespace voltapile::conformance {
namespace {

struct Extents {
  int64_t batch, tokens, heads, dim;
  int64_t qkv(int64_t b, int64_t t, int part, int64_t h) const {
    return (((b * tokens + t) * 3 + part) * heads + h) * dim;
  }
  int64_t out(int64_t b, int64_t t, int64_t h) const {
    return ((b * tokens + t) * heads + h) * dim;
  }
};
const Extents kExtents[] = {
    {1, 1, 1, 1}, {2, 5, 3, 4}, {1, 65, 2, 17}, {2, 49, 4, 16}, {1, 197, 2, 64}};

struct Result {
  Values out, lse, dqkv;
};

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

Result reference(const Values& qkv, const Values& dout, const Extents& e) {
  Result r{Values(dout.size(), 0.0), {}, Values(qkv.size(), 0.0)};
  const double scale = 1 / std::sqrt(static_cast<double>(e.dim));
  for (int64_t b = 0; b < e.batch; ++b)
    for (int64_t h = 0; h < e.heads; ++h)
      for (int64_t i = 0; i < e.tokens; ++i) {
        const double* q = &qkv[e.qkv(b, i, 0, h)];
        const double* g = &dout[e.out(b, i, h)];
        Values p(static_cast<size_t>(e.tokens)), dp(p.size());
        double sum = 0, mean = 0;
        for (int64_t j = 0; j < e.tokens; ++j) {
          p[j] = std::exp(scale * dot(q, &qkv[e.qkv(b, j, 1, h)], e.dim));
          sum += p[j];
        }
        r.lse.push_back(std::log(sum));
        for (int64_t j = 0; j < e.tokens; ++j) {
          p[j] /= sum;
          dp[j] = dot(g, &qkv[e.qkv(b, j, 2, h)], e.dim);
          mean += p[j] * dp[j];
        }
        for (int64_t j = 0; j < e.tokens; ++j) {
          const double ds = scale * p[j] * (dp[j] - mean);
          for (int64_t d = 0; d < e.dim; ++d) {
            r.out[e.out(b, i, h) + d] += p[j] * qkv[e.qkv(b, j, 2, h) + d];
            r.dqkv[e.qkv(b, i, 0, h) + d] += ds * qkv[e.qkv(b, j, 1, h) + d];
            r.dqkv[e.qkv(b, j, 1, h) + d] += ds * q[d];
            r.dqkv[e.qkv(b, j, 2, h) + d] += p[j] * g[d];
          }
        }
      }
  return r;
}

class Attention : public Conformance {};

TEST_P(Attention, forward_and_backward) {
  for (const Extents& e : kExtents) {
    const Shape out_shape{e.batch, e.tokens, e.heads, e.dim};
    const Shape shape{e.batch, e.tokens, 3, e.heads, e.dim};
    const Tensor qkv = random(type(), shape, 1.5), dout = random(type(), out_shape),
                 out = poisoned(type(), out_shape), dqkv = poisoned(type(), shape),
                 lse = poisoned(acc(), {e.batch, e.heads, e.tokens});
    kernels().attention(qkv, {}, out, lse, stream());
    const Result wanted = reference(qkv.values, dout.values, e);
    expect_near(out, wanted.out, "out");
    expect_near(lse, wanted.lse, "lse");
    // From exact values, so that one operation's rounding is not charged to the other.
    const Tensor exact = given(type(), out_shape, wanted.out),
                 exact_lse = given(acc(), {e.batch, e.heads, e.tokens}, wanted.lse);
    kernels().attention_backward(dout, qkv, {}, exact, exact_lse, dqkv, stream());
    if (e.tokens > 1) expect_near(dqkv, wanted.dqkv, "dqkv");
  }
}

TEST_P(Attention, large_scores_do_not_overflow) {
  const Extents e{1, 7, 1, 4};
  Values values(static_cast<size_t>(3 * e.tokens * e.dim), 0.0);
  for (int64_t t = 0; t < e.tokens; ++t)
    for (int64_t d = 0; d < e.dim; ++d) {
      values[e.qkv(0, t, 0, 0) + d] = 64;
      values[e.qkv(0, t, 1, 0) + d] = t == 3 ? 64 : -64;  // scores of +-8192
      values[e.qkv(0, t, 2, 0) + d] = static_cast<double>(t);
    }
  const Tensor qkv = given(type(), {1, 7, 3, 1, 4}, values), out = poisoned(type(), {1, 7, 1, 4}),
               lse = poisoned(acc(), {1, 1, 7});
  kernels().attention(qkv, {}, out, lse, stream());
  expect_near(out, Values(28, 3.0), "out");
  expect_near(lse, Values(7, 8192.0), "lse");
}

VOLTAPILE_CONFORMANCE(Attention);

}  // namespace
}  // namespace voltapile::conformance
