#include <cstdlib>
#include <functional>

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
  int64_t row(int64_t b, int64_t h, int64_t t) const { return (b * heads + h) * tokens + t; }
};

struct Result {
  Values out, lse, dqkv;
};

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// lengths: of each sample, or empty.
Result reference(const Values& qkv, const Values& dout, const Extents& e,
                 const std::vector<int64_t>& lengths) {
  Result r{Values(dout.size(), 0.0), Values(static_cast<size_t>(e.batch * e.heads * e.tokens), 0.0),
           Values(qkv.size(), 0.0)};
  const double scale = 1 / std::sqrt(static_cast<double>(e.dim));
  for (int64_t b = 0; b < e.batch; ++b) {
    const int64_t length = lengths.empty() ? e.tokens : lengths[static_cast<size_t>(b)];
    for (int64_t h = 0; h < e.heads; ++h)
      for (int64_t i = 0; i < length; ++i) {
        const double* q = &qkv[e.qkv(b, i, 0, h)];
        const double* g = &dout[e.out(b, i, h)];
        Values p(static_cast<size_t>(length)), dp(p.size());
        double sum = 0, mean = 0;
        for (int64_t j = 0; j < length; ++j) {
          p[j] = std::exp(scale * dot(q, &qkv[e.qkv(b, j, 1, h)], e.dim));
          sum += p[j];
        }
        r.lse[e.row(b, h, i)] = std::log(sum);
        for (int64_t j = 0; j < length; ++j) {
          p[j] /= sum;
          dp[j] = dot(g, &qkv[e.qkv(b, j, 2, h)], e.dim);
          mean += p[j] * dp[j];
        }
        for (int64_t j = 0; j < length; ++j) {
          const double ds = scale * p[j] * (dp[j] - mean);
          for (int64_t d = 0; d < e.dim; ++d) {
            r.out[e.out(b, i, h) + d] += p[j] * qkv[e.qkv(b, j, 2, h) + d];
            r.dqkv[e.qkv(b, i, 0, h) + d] += ds * qkv[e.qkv(b, j, 1, h) + d];
            r.dqkv[e.qkv(b, j, 1, h) + d] += ds * q[d];
            r.dqkv[e.qkv(b, j, 2, h) + d] += p[j] * g[d];
          }
        }
      }
  }
  return r;
}

class Attention : public Conformance {
 protected:
  void expect_both_ways(const Extents& e, const std::vector<int64_t>& lengths = {}) {
    const std::string what = " with " + std::to_string(e.tokens) + " tokens, head size " +
                             std::to_string(e.dim) + (lengths.empty() ? "" : ", padded");
    const Shape out_shape{e.batch, e.tokens, e.heads, e.dim}, row_shape{e.batch, e.heads, e.tokens};
    const Shape shape{e.batch, e.tokens, 3, e.heads, e.dim};
    const Tensor qkv = random(type(), shape, 1.5), dout = random(type(), out_shape),
                 out = poisoned(type(), out_shape), dqkv = poisoned(type(), shape),
                 lse = poisoned(acc(), row_shape);
    Tensor given_lengths;
    if (!lengths.empty())
      given_lengths = given(DType::i32, {e.batch}, Values(lengths.begin(), lengths.end()));
    kernels().attention(qkv, given_lengths, out, lse, stream());
    const Result wanted = reference(qkv.values, dout.values, e, lengths);
    expect_near(out, wanted.out, "out" + what);
    expect_near(lse, wanted.lse, "lse" + what);
    expect_zero_padding(read(out), e, lengths, &Extents::out);
    // From exact values, so that one operation's rounding is not charged to the other.
    const Tensor exact = given(type(), out_shape, wanted.out),
                 exact_lse = given(acc(), row_shape, wanted.lse);
    kernels().attention_backward(dout, qkv, given_lengths, exact, exact_lse, dqkv, stream());
    const Values got = read(dqkv);
    if (e.tokens > 1) expect_near(dqkv, wanted.dqkv, "dqkv" + what);
    for (int part = 0; part < 3; ++part)
      expect_zero_padding(got, e, lengths,
                          [part](const Extents& x, int64_t b, int64_t t, int64_t h) {
                            return x.qkv(b, t, part, h);
                          });
    kernels().attention_backward(dout, qkv, given_lengths, exact, exact_lse, dqkv, stream());
    EXPECT_EQ(read(dqkv), got) << "a second run gave other bits" << what;
  }

 private:
  template <class F>
  static void expect_zero_padding(const Values& got, const Extents& e,
                                  const std::vector<int64_t>& lengths, F at) {
    for (int64_t b = 0; b < static_cast<int64_t>(lengths.size()); ++b)
      for (int64_t t = lengths[static_cast<size_t>(b)]; t < e.tokens; ++t)
        for (int64_t h = 0; h < e.heads; ++h)
          for (int64_t d = 0; d < e.dim; ++d)
            ASSERT_EQ(got[std::invoke(at, e, b, t, h) + d], 0) << "padding at token " << t;
  }
};

TEST_P(Attention, forward_and_backward) {
  for (const Extents& e : {Extents{1, 1, 1, 1},
                           {2, 5, 3, 4},
                           {1, 65, 2, 17},
                           {2, 49, 4, 16},
                           {1, 70, 1, 200},
                           {1, 33, 2, 256},
                           {1, 197, 2, 64}})
    expect_both_ways(e);
}

TEST_P(Attention, every_head_size) {
  for (int64_t dim = 32; dim <= 128; dim += 8) expect_both_ways({1, 65 + dim % 5, 2, dim});
}

TEST_P(Attention, every_count_of_tokens) {
  for (int64_t tokens : {1, 17, 64, 196, 197, 256, 257, 577}) {
    const int64_t heads = tokens < 256 ? 2 : 1;
    for (int64_t dim : {64, 80, 128}) expect_both_ways({1, tokens, heads, dim});
  }
}

TEST_P(Attention, padding_is_left_out_and_zero) {
  for (int64_t dim : {24, 32, 64, 72, 80, 128}) {
    expect_both_ways({3, 197, 1, dim}, {197, 1, 130});
    expect_both_ways({2, 40, 3, dim}, {16, 33});
  }
}

// Enough heads that a thread block of a GPU works on several.
TEST_P(Attention, many_heads) {
  expect_both_ways({40, 7, 8, 64});
  expect_both_ways({36, 133, 4, 128}, std::vector<int64_t>(36, 131));
}

TEST_P(Attention, long_sequences) {
  expect_both_ways({1, 1030, 1, 64});
  expect_both_ways({1, 1024, 1, 128});
  if (std::getenv("VOLTAPILE_FULL") == nullptr) return;
  expect_both_ways({1, 4096, 1, 64}, {4001});
  expect_both_ways({1, 4096, 1, 80});
  expect_both_ways({1, 4095, 1, 20});
}

TEST_P(Attention, large_scores_do_not_overflow) {
  for (int64_t dim : {4, 32, 64}) {
    const Extents e{1, 7, 1, dim};
    Values values(static_cast<size_t>(3 * e.tokens * e.dim), 0.0);
    const double high = 64 / std::sqrt(std::sqrt(static_cast<double>(dim) / 4));
    for (int64_t t = 0; t < e.tokens; ++t)
      for (int64_t d = 0; d < e.dim; ++d) {
        values[e.qkv(0, t, 0, 0) + d] = high;
        values[e.qkv(0, t, 1, 0) + d] = t == 3 ? high : -high;  // scores of about +-8192
        values[e.qkv(0, t, 2, 0) + d] = static_cast<double>(t);
      }
    const Tensor qkv = given(type(), {1, 7, 3, 1, dim}, values),
                 out = poisoned(type(), {1, 7, 1, dim}), lse = poisoned(acc(), {1, 1, 7});
    kernels().attention(qkv, {}, out, lse, stream());
    const double rounded = qkv[0];
    expect_near(out, Values(static_cast<size_t>(7 * dim), 3.0), "out");
    expect_near(lse, Values(7, rounded * rounded * std::sqrt(static_cast<double>(dim))), "lse");
  }
}

VOLTAPILE_CONFORMANCE(Attention);

}  // namespace
}  // namespace voltapile::conformance
