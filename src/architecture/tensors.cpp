#include <algorithm>

#include "voltapile/architecture/architecture.hpp"

namespace voltapile {
namespace {

// Extents that the lists below share.
struct Extents {
  Extents(const Architecture& a, const Sizes& s)
      : samples(s.micro),
        tokens(a.tokens()),
        full(s.micro * a.tokens()),
        rows(a.rows(s)),
        dim(a.model.dim),
        heads(a.model.heads / s.tp),
        attention(a.model.heads / s.tp * a.head_dim()),
        mlp(a.model.mlp / s.tp),
        classes(a.local_classes(s.tp)),
        working(s.working),
        acc(accumulate_type(s.working)) {}
  int64_t samples, tokens, full, rows, dim, heads, attention, mlp, classes;
  DType working, acc;
};

}  // namespace

std::vector<Tensor> saved_tensors(const Architecture& a, const Layer& layer, const Sizes& s) {
  const Extents e(a, s);
  std::vector<Tensor> list;
  const auto add = [&](std::string_view name, Shape shape) {
    list.push_back({std::string(name), shape, e.working});
  };
  const auto add_exact = [&](std::string_view name, Shape shape, DType type) {
    list.push_back({std::string(name), shape, type, true});
  };
  const bool keep_cheap = s.recompute != Recompute::selective;
  switch (layer.kind) {
    case LayerKind::embedding: break;
    case LayerKind::block:
      // The exact ones side by side: what is stored in another type goes in as few pieces. A
      // LayerNorm or attention computed anew from what is exact is exact, and of the noise that
      // would be left most would come from rounded q and k.
      add_exact("mean1", {e.rows}, e.acc);
      add_exact("rstd1", {e.rows}, e.acc);
      add_exact("mean2", {e.rows}, e.acc);
      add_exact("rstd2", {e.rows}, e.acc);
      if (a.model.qk_norm) add_exact("qk_stats", {e.full, 2, e.heads, 2}, e.acc);
      if (!s.rebuild_attention) add_exact("lse", {e.samples, e.heads, e.tokens}, e.acc);
      add_exact("input", {e.rows, e.dim}, e.working);
      add_exact("middle", {e.rows, e.dim}, e.working);
      add_exact("qkv", {e.full, 3 * e.attention}, e.working);
      if (keep_cheap) add("norm1", {e.rows, e.dim});
      if (a.model.qk_norm && keep_cheap) add("qkv_normed", {e.full, 3 * e.attention});
      if (!s.rebuild_attention) add("attention", {e.full, e.attention});
      if (a.model.layer_scale != 0) add("branch1", {e.rows, e.dim});
      if (keep_cheap) add("norm2", {e.rows, e.dim});
      add("fc1", {e.full, e.mlp});
      if (keep_cheap) add("gelu", {e.full, e.mlp});
      if (a.model.layer_scale != 0) add("branch2", {e.rows, e.dim});
      break;
    case LayerKind::head:  // few numbers, and an error in the logits is one in every gradient
      add_exact("pooled", {e.samples, e.dim}, e.working);
      add_exact("mean", {e.samples}, e.acc);
      add_exact("rstd", {e.samples}, e.acc);
      add_exact("norm", {e.samples, e.dim}, e.working);
      add_exact("logits", {e.samples, e.classes}, e.working);
      add_exact("max", {e.samples}, e.acc);
      add_exact("sums", {e.samples, 3}, e.acc);
      break;
  }
  return list;
}

std::vector<Tensor> deferred_tensors(const Architecture& a, const Layer& layer, const Sizes& s,
                                     bool with_inputs) {
  const Extents e(a, s);
  switch (layer.kind) {
    case LayerKind::embedding: return {};
    case LayerKind::head: return {{"logits_gradient", {e.samples, e.classes}, e.working}};
    case LayerKind::block: break;
  }
  std::vector<Tensor> list{{"qkv_gradient", {e.full, 3 * e.attention}, e.working},
                           {"branch1_gradient", {e.rows, e.dim}, e.working},
                           {"fc1_gradient", {e.full, e.mlp}, e.working},
                           {"branch2_gradient", {e.rows, e.dim}, e.working}};
  if (with_inputs || s.rebuild_attention)
    list.push_back({"attention", {e.full, e.attention}, e.working});
  if (with_inputs) {
    list.push_back({"norm1", {e.rows, e.dim}, e.working});
    list.push_back({"norm2", {e.rows, e.dim}, e.working});
    list.push_back({"gelu", {e.full, e.mlp}, e.working});
  }
  return list;
}

std::vector<Tensor> workspace_tensors(const Architecture& a, const Layer& layer, const Sizes& s) {
  const Extents e(a, s);
  std::vector<Tensor> list;
  const auto add = [&](std::string_view name, Shape shape) {
    list.push_back({std::string(name), shape, e.working});
  };
  switch (layer.kind) {
    case LayerKind::embedding:
      add("patches", {e.samples * a.patches(), a.patch_elements()});
      add("tokens", {e.samples * a.patches(), e.dim});
      if (s.sequence) add("full", {e.full, e.dim});
      break;
    case LayerKind::block:
      add("product", {e.full, e.dim});
      add("branch_gradient", {e.rows, e.dim});
      add("inner_gradient", {e.full, std::max(3 * e.attention, e.mlp)});
      if (s.sequence) add("gathered", {e.full, e.dim});
      if (s.rebuild_attention) {
        add("attention", {e.full, e.attention});
        list.push_back({"lse", {e.samples, e.heads, e.tokens}, e.acc});
      }
      if (s.recompute == Recompute::selective) {
        add("norm", {e.rows, e.dim});
        if (a.model.qk_norm) add("qkv_normed", {e.full, 3 * e.attention});
        add("gelu", {e.full, e.mlp});
      }
      break;
    case LayerKind::head:
      add("logits_gradient", {e.samples, e.classes});
      add("norm_gradient", {e.samples, e.dim});
      add("pooled_gradient", {e.samples, e.dim});
      list.push_back({"rank", {e.samples}, e.acc});
      if (s.sequence) add("full", {e.full, e.dim});
      break;
  }
  return list;
}

Tensor boundary_tensor(const Architecture& a, const Sizes& s) {
  return {"boundary", {a.rows(s), a.model.dim}, s.working};
}

double attention_flops(const Architecture& a, int64_t micro) {
  const auto tokens = static_cast<double>(a.tokens());
  return 4 * static_cast<double>(micro) * tokens * tokens * static_cast<double>(a.model.dim);
}

Flops flops(const Architecture& a, const Layer& layer, int64_t micro) {
  const auto samples = static_cast<double>(micro), dim = static_cast<double>(a.model.dim);
  const auto tokens = static_cast<double>(a.tokens());
  switch (layer.kind) {
    case LayerKind::embedding: {
      const double product = 2 * samples * static_cast<double>(a.patches()) * dim *
                             static_cast<double>(a.patch_elements());
      return {product, 0, product};  // pictures have no gradient
    }
    case LayerKind::block: {
      const double products =
          2 * samples * tokens * (4 * dim * dim + 2 * dim * static_cast<double>(a.model.mlp));
      const double attention = attention_flops(a, micro);
      return {products + attention, products + 2 * attention, products};
    }
    case LayerKind::head: {
      const double product = 2 * samples * dim * static_cast<double>(a.model.classes);
      return {product, product, product};
    }
  }
  return {};
}

}  // namespace voltapile
