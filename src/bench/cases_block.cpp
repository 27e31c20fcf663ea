#include "workbench.hpp"

namespace voltapile::bench {
namespace {

constexpr double kEps = 1e-6;

// What normalisation and residuals of (rows, dim) read and write.
struct Rows {
  explicit Rows(Workbench& b)
      : rows(b.sizes().rows()),
        dim(b.sizes().dim),
        gamma(b.working({dim})),
        beta(b.working({dim})),
        mean(b.acc({rows})),
        rstd(b.filled(accumulate_type(b.type()), {rows}, 1)) {}
  std::vector<int64_t> shape() const { return {rows, dim}; }
  int64_t rows, dim;
  TensorView gamma, beta, mean, rstd;
};

Case layer_norm(Workbench& b) {
  const Rows r(b);
  const TensorView x = b.working({r.rows, r.dim}), y = b.working({r.rows, r.dim});
  return {"layer_norm", r.shape(), [=, &b] {
            b.kernels().layer_norm(x, r.gamma, r.beta, kEps, y, r.mean, r.rstd, b.stream());
          }};
}

Case layer_norm_backward(Workbench& b) {
  const Rows r(b);
  const TensorView dy = b.working({r.rows, r.dim}), x = b.working({r.rows, r.dim}),
                   residual = b.working({r.rows, r.dim}), dx = b.working({r.rows, r.dim}),
                   dgamma = b.acc({r.dim}), dbeta = b.acc({r.dim});
  return {"layer_norm_backward", r.shape(), [=, &b] {
            b.kernels().layer_norm_backward(dy, x, r.gamma, r.mean, r.rstd, residual, dx, dgamma,
                                            dbeta, b.stream());
          }};
}

Case layer_norm_apply(Workbench& b) {
  const Rows r(b);
  const TensorView x = b.working({r.rows, r.dim}), y = b.working({r.rows, r.dim});
  return {"layer_norm_apply", r.shape(), [=, &b] {
            b.kernels().layer_norm_apply(x, r.gamma, r.beta, r.mean, r.rstd, y, b.stream());
          }};
}

Case residual(Workbench& b) {
  const Rows r(b);
  const TensorView x = b.working({r.rows, r.dim}), branch = b.working({r.rows, r.dim}),
                   bias = b.working({r.dim}), y = b.working({r.rows, r.dim});
  return {"residual", r.shape(),
          [=, &b] { b.kernels().residual(x, branch, bias, {}, {}, y, b.stream()); }};
}

Case residual_layer_norm(Workbench& b) {
  const Rows r(b);
  const TensorView x = b.working({r.rows, r.dim}), branch = b.working({r.rows, r.dim}),
                   bias = b.working({r.dim}), y = b.working({r.rows, r.dim}),
                   h = b.working({r.rows, r.dim});
  return {"residual_layer_norm", r.shape(), [=, &b] {
            b.kernels().residual_layer_norm(x, branch, bias, {}, {}, r.gamma, r.beta, kEps, y, h,
                                            r.mean, r.rstd, b.stream());
          }};
}

Case residual_backward(Workbench& b) {
  const Rows r(b);
  const TensorView dy = b.working({r.rows, r.dim}), bias = b.working({r.dim}),
                   dbranch = b.working({r.rows, r.dim}), dbias = b.acc({r.dim});
  return {"residual_backward", r.shape(), [=, &b] {
            b.kernels().residual_backward(dy, {}, bias, {}, {}, dbranch, dbias, {}, b.stream());
          }};
}

// Heads of `head` numbers each; as many as fill dim.
struct Heads {
  Heads(Workbench& b, int64_t head)
      : batch(b.sizes().batch),
        tokens(b.sizes().tokens),
        heads(b.sizes().dim / head),
        head(head),
        qkv(b.working({batch, tokens, 3, heads, head})),
        out(b.working({batch, tokens, heads, head})),
        lse(b.acc({batch, heads, tokens})) {}
  std::vector<int64_t> shape() const { return {batch, tokens, 3, heads, head}; }
  int64_t batch, tokens, heads, head;
  TensorView qkv, out, lse;
};

Case attention(Workbench& b, int64_t head) {
  const Heads h(b, head);
  return {"attention", h.shape(),
          [=, &b] { b.kernels().attention(h.qkv, {}, h.out, h.lse, b.stream()); }};
}

Case attention_backward(Workbench& b, int64_t head) {
  const Heads h(b, head);
  const TensorView dout = b.working(h.out.shape), dqkv = b.working(h.qkv.shape);
  // The forward's own results: probabilities then sum to one.
  b.kernels().attention(h.qkv, {}, h.out, h.lse, b.stream());
  return {"attention_backward", h.shape(), [=, &b] {
            b.kernels().attention_backward(dout, h.qkv, {}, h.out, h.lse, dqkv, b.stream());
          }};
}

struct QkNorm {
  explicit QkNorm(Workbench& b)
      : heads(b, b.sizes().dim / b.sizes().heads),
        gamma(b.working({heads.head})),
        beta(b.working({heads.head})),
        stats(b.filled(accumulate_type(b.type()), {heads.batch * heads.tokens, 2, heads.heads, 2},
                       1)),
        out(b.working(heads.qkv.shape)) {}
  Heads heads;
  TensorView gamma, beta, stats, out;
};

Case qk_norm(Workbench& b) {
  const QkNorm n(b);
  return {"qk_norm", n.heads.shape(), [=, &b] {
            b.kernels().qk_norm(n.heads.qkv, n.gamma, n.beta, n.gamma, n.beta, kEps, n.out, n.stats,
                                b.stream());
          }};
}

Case qk_norm_backward(Workbench& b) {
  const QkNorm n(b);
  const TensorView dout = b.working(n.out.shape), d = b.acc({4, n.heads.head});
  const auto part = [d, head = n.heads.head](int64_t i) {
    return d.slice_flat(i * head, (i + 1) * head);
  };
  return {"qk_norm_backward", n.heads.shape(), [=, &b] {
            b.kernels().qk_norm_backward(dout, n.heads.qkv, n.gamma, n.gamma, n.stats, n.out,
                                         part(0), part(1), part(2), part(3), b.stream());
          }};
}

Case dropout(Workbench& b) {
  const int64_t rows = b.sizes().rows(), dim = b.sizes().dim;
  const TensorView x = b.working({rows, dim}), y = b.working({rows, dim});
  Dropout drop;
  drop.rate = 0.1f;
  drop.rows_per_sample = b.sizes().tokens;
  drop.state = b.state();
  return {"dropout", {rows, dim}, [=, &b] { b.kernels().dropout(x, drop, y, b.stream()); }};
}

// A block's input, as it is kept in 8 bits.
struct Stored {
  explicit Stored(Workbench& b)
      : elements(b.sizes().rows() * b.sizes().dim),
        x(b.working({elements})),
        codes(b.bytes({elements})),
        scales(b.filled(DType::f32, {(elements + kQuantiseBlock - 1) / kQuantiseBlock}, 1)) {}
  int64_t elements;
  TensorView x, codes, scales;
};

Case quantise_8bit(Workbench& b) {
  const Stored s(b);
  return {"quantise_8bit", {s.elements}, [=, &b] {
            b.kernels().quantise_8bit(s.x, {}, s.codes, s.scales, b.stream());
          }};
}

Case dequantise_8bit(Workbench& b) {
  const Stored s(b);
  return {"dequantise_8bit", {s.elements}, [=, &b] {
            b.kernels().dequantise_8bit(s.codes, s.scales, s.x, b.stream());
          }};
}

}  // namespace

std::vector<Prepare> block_cases() {
  std::vector<Prepare> cases = {layer_norm, layer_norm_backward, layer_norm_apply,
                                residual,   residual_layer_norm, residual_backward,
                                dropout,    quantise_8bit,       dequantise_8bit};
  for (const int64_t head : {64, 128}) {
    cases.emplace_back([head](Workbench& b) { return attention(b, head); });
    cases.emplace_back([head](Workbench& b) { return attention_backward(b, head); });
  }
  cases.emplace_back(qk_norm);
  cases.emplace_back(qk_norm_backward);
  return cases;
}

}  // namespace voltapile::bench
