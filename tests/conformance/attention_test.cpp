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

// For the loops of the plain reference alone: no sanitizer need watch them, and under one they took
// most of the tests' time.
#define VP_NOT_WATCHED __attribute__((no_sanitize("address", "undefined", "thread")))

VP_NOT_WATCHED double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// One query and its output gradient against all keys and values, rows of `dim` numbers that lie
// `stride` apart; p and dp are room for `length` numbers. Adds to out, dq, dk and dv, and returns
// the logarithm of the sum.
VP_NOT_WATCHED double attend(const double* q, const double* g, const double* k, const double* v,
                             int64_t length, int64_t dim, int64_t stride, double* p, double* dp,
                             double* out, double* dq, double* dk, double* dv) {
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  double sum = 0, mean = 0;
  for (int64_t j = 0; j < length; ++j) {
    p[j] = std::exp(scale * dot(q, k + j * stride, dim));
    sum += p[j];
  }
  for (int64_t j = 0; j < length; ++j) {
    p[j] /= sum;
    dp[j] = dot(g, v + j * stride, dim);
    mean += p[j] * dp[j];
  }
  for (int64_t j = 0; j < length; ++j) {
    const double ds = scale * p[j] * (dp[j] - mean);
    for (int64_t d = 0; d < dim; ++d) {
      out[d] += p[j] * v[j * stride + d];
      dq[d] += ds * k[j * stride + d];
      dk[j * stride + d] += ds * q[d];
      dv[j * stride + d] += p[j] * g[d];
    }
  }
  return std::log(sum);
}

// lengths: of each sample.
Result reference(const Values& qkv, const Values& dout, const Extents& e,
                 const std::vector<int64_t>& lengths) {
  Result r{Values(dout.size(), 0.0), Values(static_cast<size_t>(e.batch * e.heads * e.tokens), 0.0),
           Values(qkv.size(), 0.0)};
  const int64_t stride = e.qkv(0, 1, 0, 0);
  for (int64_t b = 0; b < e.batch; ++b) {
    const int64_t length = lengths[static_cast<size_t>(b)];
    Values p(static_cast<size_t>(length)), dp(p.size());
    for (int64_t h = 0; h < e.heads; ++h)
      for (int64_t i = 0; i < length; ++i)
        r.lse[e.row(b, h, i)] =
            attend(&qkv[e.qkv(b, i, 0, h)], &dout[e.out(b, i, h)], &qkv[e.qkv(b, 0, 1, h)],
                   &qkv[e.qkv(b, 0, 2, h)], length, e.dim, stride, p.data(), dp.data(),
                   &r.out[e.out(b, i, h)], &r.dqkv[e.qkv(b, i, 0, h)], &r.dqkv[e.qkv(b, 0, 1, h)],
                   &r.dqkv[e.qkv(b, 0, 2, h)]);
  }
  return r;
}

// A tensor of rows of `width` numbers: where row (b, t, part, h) starts.
struct Rows {
  int parts;
  int64_t width;
  std::function<int64_t(int64_t b, int64_t t, int part, int64_t h)> at;
};

class Attention : public Conformance {
 protected:
  void expect_both_ways(const Extents& e, std::vector<int64_t> lengths = {}) {
    const std::string what = " with " + std::to_string(e.tokens) + " tokens, head size " +
                             std::to_string(e.dim) + (lengths.empty() ? "" : ", padded");
    const Shape out_shape{e.batch, e.tokens, e.heads, e.dim}, row_shape{e.batch, e.heads, e.tokens};
    const Shape shape{e.batch, e.tokens, 3, e.heads, e.dim};
    Tensor on_device;
    if (lengths.empty()) lengths.assign(static_cast<size_t>(e.batch), e.tokens);
    else on_device = given(DType::i32, {e.batch}, Values(lengths.begin(), lengths.end()));
    const Tensor qkv = random(type(), shape, 1.5), dout = random(type(), out_shape),
                 out = poisoned(type(), out_shape), dqkv = poisoned(type(), shape),
                 lse = poisoned(acc(), row_shape);
    const Result wanted = reference(qkv.values, dout.values, e, lengths);

    kernels().attention(qkv, on_device, out, lse, stream());
    const Rows out_rows{1, e.dim, [&](auto b, auto t, int, auto h) { return e.out(b, t, h); }};
    expect_close(read(out), wanted.out, e, lengths, out_rows, "out" + what);
    const Rows lse_rows{1, 1, [&](auto b, auto t, int, auto h) { return e.row(b, h, t); }};
    expect_close(read(lse), wanted.lse, e, lengths, lse_rows, "lse" + what);

    // From exact values, so that one operation's rounding is not charged to the other.
    const Tensor exact = given(type(), out_shape, wanted.out),
                 exact_lse = given(acc(), row_shape, wanted.lse);
    kernels().attention_backward(dout, qkv, on_device, exact, exact_lse, dqkv, stream());
    const Values got = read(dqkv);
    const Rows dqkv_rows{3, e.dim,
                         [&](auto b, auto t, int part, auto h) { return e.qkv(b, t, part, h); }};
    expect_close(got, wanted.dqkv, e, lengths, dqkv_rows, "dqkv" + what);
    kernels().attention_backward(dout, qkv, on_device, exact, exact_lse, dqkv, stream());
    EXPECT_EQ(read(dqkv), got) << "a second run gave other bits" << what;
  }

 private:
  // As expect_near, with the root mean square of the sample, or of its part (q, k, v) where that is
  // larger: short samples have larger gradients than long ones, and padding, which must be zero,
  // has none. Half the tolerance holds for the error's root mean square, the tolerance for every
  // element; in 16 bits twice that: with rounded probabilities the worst of a hundred thousand sums
  // is there, on the CPU and in other fused attention too.
  void expect_close(const Values& got, const Values& wanted, const Extents& e,
                    const std::vector<int64_t>& lengths, const Rows& rows,
                    const std::string& what) {
    const double worst = tolerance_of(type()) * (bytes_of(type()) == 2 ? 2 : 1);
    for (int64_t b = 0; b < e.batch; ++b) {
      const int64_t length = lengths[static_cast<size_t>(b)];
      const auto count = static_cast<double>(length * e.heads * rows.width);
      const auto mean_square = [&](int part) {
        double squares = 0;
        for (int64_t t = 0; t < length; ++t)
          for (int64_t h = 0; h < e.heads; ++h)
            squares +=
                dot(&wanted[rows.at(b, t, part, h)], &wanted[rows.at(b, t, part, h)], rows.width);
        return squares / count;
      };
      double all = 0;
      for (int part = 0; part < rows.parts; ++part) all += mean_square(part) / rows.parts;
      for (int part = 0; part < rows.parts; ++part) {
        const double typical = std::sqrt(std::max(all, mean_square(part)));
        double error_squares = 0;
        for (int64_t t = 0; t < e.tokens; ++t)
          for (int64_t h = 0; h < e.heads; ++h)
            for (int64_t d = 0; d < rows.width; ++d) {
              const int64_t i = rows.at(b, t, part, h) + d;
              const double error = std::fabs(got[i] - wanted[i]);
              error_squares += error * error;
              ASSERT_LE(error, t < length ? worst * std::max(std::fabs(wanted[i]), typical) : 0)
                  << what << ": sample " << b << ", token " << t << " of " << length << ", part "
                  << part << ", head " << h << ": " << got[i] << " for " << wanted[i];
            }
        EXPECT_LE(std::sqrt(error_squares / count), tolerance_of(type()) / 2 * typical)
            << what << ": sample " << b << ", part " << part;
      }
    }
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

// The reference takes most of the time, has no threads, and is thirty times as slow where all
// memory accesses are watched for races. Shorter sequences have all threads' work already.
#if defined(__SANITIZE_THREAD__)
constexpr int64_t kMostTokens = 200;
#else
constexpr int64_t kMostTokens = 4096;
#endif

TEST_P(Attention, every_head_size) {
  for (int64_t dim = 32; dim <= 128; dim += 8) expect_both_ways({1, 65 + dim % 5, 2, dim});
}

TEST_P(Attention, every_count_of_tokens) {
  for (int64_t tokens : {1, 17, 64, 196, 197, 256, 257, 577}) {
    if (tokens > kMostTokens) continue;
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

// Enough heads that each multiprocessor of a GPU has one; then several, of very different lengths.
TEST_P(Attention, many_heads) {
  if (GetParam().backend == Backend::cuda) {
    for (int64_t dim = 32; dim <= 128; dim += 8) expect_both_ways({17, 65 + dim % 5, 4, dim});
    for (int64_t dim : {64, 128}) expect_both_ways({17, 197, 4, dim});
    for (int64_t dim : {64, 80, 128}) expect_both_ways({17, 257, 4, dim});
  }
  expect_both_ways({40, 7, 8, 64});
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b < 36; ++b) lengths.push_back(b % 9 == 0 ? 133 - b : 1 + b);
  expect_both_ways({36, 133, 4, 128}, lengths);
  if (kMostTokens < 300) return;
  lengths.clear();
  for (int64_t b = 0; b < 17; ++b) lengths.push_back(b % 6 == 0 ? 300 - b : 1 + 9 * b);
  for (int64_t dim : {64, 72}) expect_both_ways({17, 300, 4, dim}, lengths);
}

TEST_P(Attention, long_sequences) {
  if (kMostTokens < 4096) GTEST_SKIP() << "too slow under ThreadSanitizer";
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
