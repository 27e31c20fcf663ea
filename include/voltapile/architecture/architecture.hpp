// What a Vision Transformer consists of, as data: for every layer its parameters, the tensors that
// forward keeps for backward, the temporaries, and FLOPs. Pure; `model` binds to these names and is
// tested against them.
//
// Layer l of `layers`: 0 = embedding, 1..depth = blocks 0..depth-1, depth+1 = head.
// Shapes: B samples in a micro-batch, T tokens, R = rows of (B*T, .) that a rank holds (B*T, or
// B*T/tp with sequence parallelism), C dim, H heads, D = C/H, M mlp, K classes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "voltapile/base/dtype.hpp"
#include "voltapile/base/tensor_view.hpp"
#include "voltapile/deck/deck.hpp"

namespace voltapile {

// How a parameter is divided over the tensor axis.
enum class Split {
  replicated,
  columns,  // dim 0 in equal parts (mlp.fc1, and 1-D biases with it)
  qkv,      // dim 0 is (3, H, D): the heads are divided, so a shard is three runs of rows
  rows,     // dim 1 in equal parts (attn.proj.weight, mlp.fc2.weight)
  classes,  // dim 0 in equal parts of ceil(K / tp) rows; the last parts are padded in buffers only
};

// What the tensor ranks hold of a replicated parameter's gradient after backward.
enum class TensorGradient {
  complete,             // the same full gradient everywhere (or the parameter is divided)
  partial,              // each rank holds a summand: all-reduce over tp
  partial_if_sequence,  // a summand with sequence parallelism, complete without
};

enum class Initial { zeros, ones, truncated_normal, layer_scale, sine2d };

struct Parameter {
  std::string name;  // timm's, e.g. "blocks.3.attn.qkv.weight"
  Shape shape;       // of the whole tensor, as timm stores it
  Split split = Split::replicated;
  TensorGradient tensor_gradient = TensorGradient::complete;
  Initial initial = Initial::zeros;
  bool decay =
      false;  // weight decay applies (timm's rule: matrices only, never position or class token)
  bool trained = true;  // false: a fixed sine table, whose gradient is left zero
  uint32_t id = 0;      // index over the whole model: the `item` of its random numbers
};

// Shape of the part of `p` that one tensor rank holds, padding included. (The qkv split keeps
// (3*H/tp*D, C).)
Shape local_shape(const Parameter& p, int tp);

// The local tensor as rectangles of the whole one, padding left out. Both are seen as matrices (dim
// 0, rest). Rectangle: `rows` x `columns` from (local_row, local_column) to (whole_row,
// whole_column).
struct Rectangle {
  int64_t local_row, local_column, whole_row, whole_column, rows, columns;
};
std::vector<Rectangle> placement(const Parameter& p, int tp, int tp_rank);

enum class LayerKind { embedding, block, head };

struct Tensor {  // a named intermediate
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  size_t bytes() const { return static_cast<size_t>(shape.elements()) * bytes_of(dtype); }
};

struct Layer {
  LayerKind kind{};
  int block = -1;                     // block number for LayerKind::block
  std::vector<Parameter> parameters;  // in timm's order
};

// Everything that shapes depend on besides the layer.
struct Sizes {
  int64_t micro = 1;  // B
  int tp = 1;
  bool sequence = false;  // rows divided over tp outside attention and MLP
  DType working = DType::f32;
  Recompute recompute = Recompute::none;
};

struct Architecture {
  Deck::Model model;
  double label_smoothing = 0;
  std::vector<Layer> layers;

  int64_t grid_height() const { return model.image[0] / model.patch[0]; }
  int64_t grid_width() const { return model.image[1] / model.patch[1]; }
  int64_t patches() const { return grid_height() * grid_width(); }
  int64_t tokens() const { return patches() + (model.pool == Pool::token ? 1 : 0); }
  int64_t patch_elements() const { return model.channels * model.patch[0] * model.patch[1]; }
  int64_t head_dim() const { return model.dim / model.heads; }
  int64_t rows(const Sizes& s) const { return s.micro * tokens() / (s.sequence ? s.tp : 1); }
  int64_t local_classes(int tp) const { return (model.classes + tp - 1) / tp; }
  int64_t parameter_count() const;  // of the whole model, fixed tables left out
};

Architecture make_architecture(const Deck& deck);

// Tensors that forward leaves for backward in one layer, under s.recompute none or selective. With
// Recompute::layers a segment keeps its input only, and these are rebuilt in a buffer of one
// segment.
std::vector<Tensor> saved_tensors(const Architecture&, const Layer&, const Sizes&);
// Linear inputs and output gradients that a split backward keeps from backward_input to
// backward_weight. With recomputation the linear inputs are among them (their segment buffer is
// reused); otherwise they stay saved.
std::vector<Tensor> deferred_tensors(const Architecture&, const Layer&, const Sizes&,
                                     bool with_inputs);
// Temporaries of forward and backward of one layer, none of which outlives the call.
std::vector<Tensor> workspace_tensors(const Architecture&, const Layer&, const Sizes&);
// The boundary activation (R, C), and its gradient.
Tensor boundary_tensor(const Architecture&, const Sizes&);

// Multiply-adds count as two. Of the whole layer (all tp ranks together) for one micro-batch.
struct Flops {
  double forward = 0, backward_input = 0, backward_weight = 0;
};
Flops flops(const Architecture&, const Layer&, int64_t micro);

size_t total_bytes(const std::vector<Tensor>& tensors, size_t alignment = 256);

// Rows of a layer's parameters laid in one flat local buffer: weights, gradients and state share
// it.
struct FlatEntry {
  int layer;                 // index into Architecture::layers
  int parameter;             // index into Layer::parameters
  int64_t offset, elements;  // in elements of the flat buffer; elements = local_shape().elements()
};
// Entries of layers [first, last) in order, each aligned to 64 elements. A fixed table has its
// place too; its gradient stays zero, so AdamW leaves it as it is.
struct FlatLayout {
  std::vector<FlatEntry> entries;
  int64_t elements = 0;
};  // elements: padded to a multiple of `multiple`
FlatLayout flat_layout(const Architecture&, int first_layer, int last_layer, int tp, int multiple);

}  // namespace voltapile
