#include <algorithm>

#include <fnmatch.h>

#include "voltapile/architecture/architecture.hpp"

namespace voltapile {
namespace {

// Collects a layer's parameters in timm's order.
class ParameterList {
 public:
  ParameterList(std::string prefix, uint32_t& next_id)
      : prefix_(std::move(prefix)), next_id_(next_id) {}

  Parameter& add(std::string_view name, Shape shape, Initial initial,
                 Split split = Split::replicated,
                 TensorGradient gradient = TensorGradient::complete) {
    Parameter p;
    p.name = prefix_ + std::string(name);
    p.shape = shape;
    p.split = split;
    p.tensor_gradient = gradient;
    p.initial = initial;
    p.decay = shape.dims() >= 2;
    p.id = next_id_++;
    list_.push_back(std::move(p));
    return list_.back();
  }
  void add_norm(std::string_view name, int64_t size, TensorGradient gradient) {
    add(std::string(name) + ".weight", {size}, Initial::ones, Split::replicated, gradient);
    add(std::string(name) + ".bias", {size}, Initial::zeros, Split::replicated, gradient);
  }
  std::vector<Parameter> take() { return std::move(list_); }

 private:
  std::string prefix_;
  uint32_t& next_id_;
  std::vector<Parameter> list_;
};

Layer embedding_layer(const Architecture& a, uint32_t& next_id) {
  const auto& m = a.model;
  ParameterList list("", next_id);
  if (m.pool == Pool::token)
    list.add("cls_token", {1, 1, m.dim}, Initial::truncated_normal).decay = false;
  const bool learned = m.position == Position::learned;
  Parameter& position = list.add("pos_embed", {1, a.tokens(), m.dim},
                                 learned ? Initial::truncated_normal : Initial::sine2d);
  position.decay = false;
  position.trained = learned;
  list.add("patch_embed.proj.weight", {m.dim, m.channels, m.patch[0], m.patch[1]},
           Initial::truncated_normal);
  list.add("patch_embed.proj.bias", {m.dim}, Initial::zeros);
  return {LayerKind::embedding, -1, list.take()};
}

Layer block_layer(const Architecture& a, int block, uint32_t& next_id) {
  const auto& m = a.model;
  const auto in_rows = TensorGradient::partial_if_sequence;
  ParameterList list(format("blocks.{}.", block), next_id);
  list.add_norm("norm1", m.dim, in_rows);
  list.add("attn.qkv.weight", {3 * m.dim, m.dim}, Initial::truncated_normal, Split::qkv);
  if (m.qkv_bias) list.add("attn.qkv.bias", {3 * m.dim}, Initial::zeros, Split::qkv);
  if (m.qk_norm) {
    // Shared by all heads, of which each tensor rank sees its own.
    list.add_norm("attn.q_norm", a.head_dim(), TensorGradient::partial);
    list.add_norm("attn.k_norm", a.head_dim(), TensorGradient::partial);
  }
  list.add("attn.proj.weight", {m.dim, m.dim}, Initial::truncated_normal, Split::rows);
  list.add("attn.proj.bias", {m.dim}, Initial::zeros, Split::replicated, in_rows);
  if (m.layer_scale != 0)
    list.add("ls1.gamma", {m.dim}, Initial::layer_scale, Split::replicated, in_rows);
  list.add_norm("norm2", m.dim, in_rows);
  list.add("mlp.fc1.weight", {m.mlp, m.dim}, Initial::truncated_normal, Split::columns);
  list.add("mlp.fc1.bias", {m.mlp}, Initial::zeros, Split::columns);
  list.add("mlp.fc2.weight", {m.dim, m.mlp}, Initial::truncated_normal, Split::rows);
  list.add("mlp.fc2.bias", {m.dim}, Initial::zeros, Split::replicated, in_rows);
  if (m.layer_scale != 0)
    list.add("ls2.gamma", {m.dim}, Initial::layer_scale, Split::replicated, in_rows);
  return {LayerKind::block, block, list.take()};
}

Layer head_layer(const Architecture& a, uint32_t& next_id) {
  const auto& m = a.model;
  ParameterList list("", next_id);
  list.add_norm(m.pool == Pool::token ? "norm" : "fc_norm", m.dim, TensorGradient::complete);
  list.add("head.weight", {m.classes, m.dim}, Initial::truncated_normal, Split::classes);
  list.add("head.bias", {m.classes}, Initial::zeros, Split::classes);
  return {LayerKind::head, -1, list.take()};
}

// The whole tensor as a matrix (dim 0, rest).
int64_t matrix_rows(const Shape& shape) { return shape.dims() == 0 ? 1 : shape[0]; }
int64_t matrix_columns(const Shape& shape) {
  return shape.elements() / std::max<int64_t>(1, matrix_rows(shape));
}

}  // namespace

Architecture make_architecture(const Deck& deck) {
  Architecture a;
  a.model = deck.model;
  a.label_smoothing = deck.loss.label_smoothing;
  uint32_t next_id = 0;
  a.layers.push_back(embedding_layer(a, next_id));
  for (int block = 0; block < a.model.depth; ++block)
    a.layers.push_back(block_layer(a, block, next_id));
  a.layers.push_back(head_layer(a, next_id));
  for (Layer& layer : a.layers)
    for (Parameter& p : layer.parameters)
      p.frozen =
          std::any_of(deck.optimizer.freeze.begin(), deck.optimizer.freeze.end(),
                      [&](const std::string& pattern) { return is_named_by(pattern, p.name); });
  return a;
}

bool is_named_by(const std::string& pattern, const std::string& parameter) {
  return fnmatch(pattern.c_str(), parameter.c_str(), FNM_NOESCAPE) == 0;
}

int64_t Architecture::parameter_count() const {
  int64_t count = 0;
  for (const Layer& layer : layers)
    for (const Parameter& p : layer.parameters)
      if (p.trained) count += p.shape.elements();
  return count;
}

int64_t Architecture::frozen_count() const {
  int64_t count = 0;
  for (const Layer& layer : layers)
    for (const Parameter& p : layer.parameters)
      if (p.trained && p.frozen) count += p.shape.elements();
  return count;
}

Shape local_shape(const Parameter& p, int tp) {
  Shape local = p.shape;
  switch (p.split) {
    case Split::replicated: break;
    case Split::columns:
    case Split::qkv: local.set(0, p.shape[0] / tp); break;
    case Split::rows: local.set(1, p.shape[1] / tp); break;
    case Split::classes: local.set(0, (p.shape[0] + tp - 1) / tp); break;
  }
  return local;
}

std::vector<Rectangle> placement(const Parameter& p, int tp, int tp_rank) {
  VP_CHECK(0 <= tp_rank && tp_rank < tp, "tensor rank {} of {}", tp_rank, tp);
  const int64_t rows = matrix_rows(p.shape), columns = matrix_columns(p.shape);
  const Shape local = local_shape(p, tp);
  const int64_t local_rows = matrix_rows(local), local_columns = matrix_columns(local);
  switch (p.split) {
    case Split::replicated: return {{0, 0, 0, 0, rows, columns}};
    case Split::columns: return {{0, 0, tp_rank * local_rows, 0, local_rows, columns}};
    case Split::rows: return {{0, 0, 0, tp_rank * local_columns, rows, local_columns}};
    case Split::qkv: {
      const int64_t part = rows / 3, local_part = local_rows / 3;
      std::vector<Rectangle> runs;
      for (int64_t i = 0; i < 3; ++i)
        runs.push_back(
            {i * local_part, 0, i * part + tp_rank * local_part, 0, local_part, columns});
      return runs;
    }
    case Split::classes: {
      const int64_t first = tp_rank * local_rows;
      const int64_t held = std::clamp<int64_t>(rows - first, 0, local_rows);
      if (held == 0) return {};
      return {{0, 0, first, 0, held, columns}};
    }
  }
  return {};
}

FlatLayout flat_layout(const Architecture& a, int first_layer, int last_layer, int tp,
                       int multiple) {
  constexpr int64_t kAlignment = 64;
  const auto round_up = [](int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; };
  FlatLayout layout;
  for (int l = first_layer; l < last_layer; ++l) {
    const auto& parameters = a.layers[static_cast<size_t>(l)].parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const int64_t elements = local_shape(parameters[i], tp).elements();
      const int64_t offset = round_up(layout.elements, kAlignment);
      layout.entries.push_back({l, static_cast<int>(i), offset, elements});
      layout.elements = offset + elements;
    }
  }
  layout.elements = round_up(layout.elements, multiple);
  return layout;
}

}  // namespace voltapile
