#include "workbench.hpp"

namespace voltapile::bench {
namespace {

struct Product {
  int64_t rows, in, out;
  std::vector<int64_t> shape() const { return {rows, in, out}; }
};

enum class Weight { qkv, proj, fc1, fc2 };
Product product_of(const Sizes& s, Weight weight) {
  switch (weight) {
    case Weight::qkv: return {s.rows(), s.dim, 3 * s.dim};
    case Weight::proj: return {s.rows(), s.dim, s.dim};
    case Weight::fc1: return {s.rows(), s.dim, s.mlp};
    case Weight::fc2: return {s.rows(), s.mlp, s.dim};
  }
  return {};
}

Case linear(Workbench& b, Weight weight) {
  const Product p = product_of(b.sizes(), weight);
  const TensorView x = b.working({p.rows, p.in}), w = b.working({p.out, p.in}),
                   bias = b.working({p.out}), y = b.working({p.rows, p.out});
  return {"linear", p.shape(), [=, &b] { b.kernels().linear(x, w, bias, y, b.stream()); }};
}

Case linear_gelu(Workbench& b) {
  const Product p = product_of(b.sizes(), Weight::fc1);
  const TensorView x = b.working({p.rows, p.in}), w = b.working({p.out, p.in}),
                   bias = b.working({p.out}), pre = b.working({p.rows, p.out}),
                   y = b.working({p.rows, p.out});
  return {"linear_gelu", p.shape(),
          [=, &b] { b.kernels().linear_gelu(x, w, bias, pre, y, b.stream()); }};
}

Case backward_input(Workbench& b, Weight weight) {
  const Product p = product_of(b.sizes(), weight);
  const TensorView dy = b.working({p.rows, p.out}), w = b.working({p.out, p.in}),
                   dx = b.working({p.rows, p.in});
  return {"linear_backward_input", p.shape(),
          [=, &b] { b.kernels().linear_backward_input(dy, w, dx, b.stream()); }};
}

Case backward_input_gelu(Workbench& b) {
  const Product p = product_of(b.sizes(), Weight::fc2);
  const TensorView dy = b.working({p.rows, p.out}), w = b.working({p.out, p.in}),
                   pre = b.working({p.rows, p.in}), dpre = b.working({p.rows, p.in});
  return {"linear_backward_input_gelu", p.shape(),
          [=, &b] { b.kernels().linear_backward_input_gelu(dy, w, pre, dpre, b.stream()); }};
}

Case backward_weight(Workbench& b, Weight weight) {
  const Product p = product_of(b.sizes(), weight);
  const TensorView dy = b.working({p.rows, p.out}), x = b.working({p.rows, p.in}),
                   dw = b.acc({p.out, p.in}), db = b.acc({p.out});
  return {"linear_backward_weight", p.shape(),
          [=, &b] { b.kernels().linear_backward_weight(dy, x, dw, db, b.stream()); }};
}

Case gelu(Workbench& b) {
  const int64_t rows = b.sizes().rows(), columns = b.sizes().mlp;
  const TensorView pre = b.working({rows, columns}), y = b.working({rows, columns});
  return {"gelu", {rows, columns}, [=, &b] { b.kernels().gelu(pre, y, b.stream()); }};
}

}  // namespace

std::vector<Prepare> product_cases() {
  std::vector<Prepare> cases;
  for (const Weight weight : {Weight::qkv, Weight::proj, Weight::fc2})
    cases.emplace_back([weight](Workbench& b) { return linear(b, weight); });
  cases.emplace_back(linear_gelu);
  for (const Weight weight : {Weight::qkv, Weight::proj, Weight::fc1})
    cases.emplace_back([weight](Workbench& b) { return backward_input(b, weight); });
  cases.emplace_back(backward_input_gelu);
  for (const Weight weight : {Weight::qkv, Weight::proj, Weight::fc1, Weight::fc2})
    cases.emplace_back([weight](Workbench& b) { return backward_weight(b, weight); });
  cases.emplace_back(gelu);
  return cases;
}

}  // namespace voltapile::bench
