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
#include <string_view>
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
  bool frozen = false;  // by optimizer.freeze: it has a gradient that nothing uses
  uint32_t id = 0;      // index over the whole model: the `item` of its random numbers
  bool is_updated() const { return trained && !frozen; }
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
  bool exact = false;  // keeps its type where others are stored in 8 bits
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
  // Attention's output and log-sum-exps are not kept: backward computes them from the q, k and v
  // that it reads. Not with segments, which compute everything anew.
  bool rebuild_attention = false;
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
  int64_t frozen_count() const;     // of those
};

// Whether a pattern of optimizer.freeze names this parameter: * stands for any characters, ? for
// one, [abc] for one of these (fnmatch of POSIX, dots being characters like others).
bool is_named_by(const std::string& pattern, const std::string& parameter);

Architecture make_architecture(const Deck& deck);

// --- Intermediates of one layer. F = B*T rows, R as above; h = heads/tp, m = mlp/tp, L = local
// classes; N patches, E patch elements. Statistics (mean, rstd, lse, max, sums, qk_stats) are
// accumulate_type.
//
// Tensors that forward leaves for backward, under s.recompute none or selective (* left out):
//   embedding  nothing: backward makes the patches again from the pictures, which stay until then
//   block      input (R,C)  norm1 (R,C)*  mean1, rstd1 (R)  qkv (F,3*h*D)
//              qkv_normed (F,3*h*D)*, qk_stats (F,2,h,2) with QK-norm
//              attention (F,h*D)  lse (B,h,T)  branch1 (R,C) with LayerScale
//              middle (R,C): the residual stream after attention
//              norm2 (R,C)*  mean2, rstd2 (R)  fc1 (F,m): before GELU  gelu (F,m)*
//              branch2 (R,C) with LayerScale
//   head       pooled (B,C)  mean, rstd (B)  norm (B,C)  logits (B,L)  max (B)  sums (B,3)
// With sequence parallelism the norm outputs stay divided into rows and are gathered again in
// backward (as Korthikanti et al. 2022, section 4.2.2, choose to). "input" of a chunk's first layer
// is the boundary activation, so it is left out of the chunk's set.
std::vector<Tensor> saved_tensors(const Architecture&, const Layer&, const Sizes&);
// What a split backward keeps from backward_input to backward_weight: the output gradients of the
// linear layers, and their inputs too when with_inputs (recomputation: their segment buffer is
// reused; without it they stay saved, or are rebuilt from what is saved under selective). The
// gradients of norms, LayerScale, replicated biases and the embedding are not put off.
//   embedding  nothing
//   block      qkv_gradient (F,3*h*D)  branch1_gradient (R,C)
//              fc1_gradient (F,m)  branch2_gradient (R,C)
//              with_inputs: norm1 (R,C)  attention (F,h*D)  norm2 (R,C)  gelu (F,m)
//   head       logits_gradient (B,L); its inputs stay saved
std::vector<Tensor> deferred_tensors(const Architecture&, const Layer&, const Sizes&,
                                     bool with_inputs);
// Temporaries of forward and backward of one layer, none of which outlives the call.
//   embedding  patches (B*N,E)  tokens (B*N,C), or their gradient  full (F,C) with sequence
//   block      product (F,C): summands of a divided product, or the gradient of attention
//              branch_gradient (R,C)  inner_gradient (F,max(3*h*D,m)): of qkv or fc1, one at a time
//              gathered (F,C) with sequence
//              norm (R,C), qkv_normed (F,3*h*D) with QK-norm, gelu (F,m) with selective
//   head       logits_gradient (B,L)  norm_gradient, pooled_gradient (B,C)  rank (B)
//              full (F,C) with sequence
std::vector<Tensor> workspace_tensors(const Architecture&, const Layer&, const Sizes&);
// The boundary activation (R, C), and its gradient.
Tensor boundary_tensor(const Architecture&, const Sizes&);

// --- Intermediates of a chunk: layers [first_layer, end_layer) that run as one unit. `plan` sizes
// its slots by these and `model` finds its tensors in them, so that the two cannot disagree.
struct ChunkLayers {
  int first_layer = 0, end_layer = 0;
  int segment_layers = 0;  // Recompute::layers: blocks per segment; 0 = everything saved is kept
};
struct PlacedTensor {
  int layer;  // index into Architecture::layers; -1: of the chunk
  Tensor tensor;
  size_t offset;  // bytes, a multiple of 256
};
struct TensorLayout {
  std::vector<PlacedTensor> tensors;
  size_t bytes = 0;
  const PlacedTensor* find(int layer, std::string_view name) const;  // null: not there
};

// Blocks [first_layer, end_layer) that are recomputed together, in order, as even as possible and
// none longer than segment_layers (the whole chunk if that is 0). Embedding and head belong to
// none: they are never recomputed.
struct Segment {
  int first_layer, end_layer;
};
std::vector<Segment> segments(const Architecture&, const ChunkLayers&);

// Kept from forward to backward. segment_layers == 0: all saved_tensors, less the "input" of the
// chunk's first layer. Else: the "input" of each segment's first block (less that of the chunk's
// first layer) and the head's saved_tensors.
TensorLayout chunk_saved(const Architecture&, const ChunkLayers&, const Sizes&);
// Kept from backward_input to backward_weight (with inputs if segment_layers != 0).
TensorLayout chunk_deferred(const Architecture&, const ChunkLayers&, const Sizes&);
// The buffer of one segment while it is (re)computed: saved_tensors of its blocks, less the "input"
// of its first.
TensorLayout segment_saved(const Architecture&, const Segment&, const Sizes&);
// saved_tensors of one layer where nothing is kept (evaluation), less its "input".
TensorLayout layer_saved(const Architecture&, int layer, const Sizes&);
// workspace_tensors of one layer.
TensorLayout layer_workspace(const Architecture&, int layer, const Sizes&);

// The workspace of a chunk, in parts that follow each other.
struct ChunkWorkspace {
  size_t stream_offset = 0;           // (R,C): a layer's output that nobody keeps
  size_t stream_gradient_offset = 0;  // (R,C): training only
  size_t kept_offset = 0;   // one segment_saved (recomputation), or one layer_saved (evaluation)
  size_t layer_offset = 0;  // one layer_workspace
  size_t bytes = 0;
};
ChunkWorkspace chunk_workspace(const Architecture&, const ChunkLayers&, const Sizes&,
                               bool training);

// Multiply-adds count as two. Of the whole layer (all tp ranks together) for one micro-batch.
struct Flops {
  double forward = 0, backward_input = 0, backward_weight = 0;
};
Flops flops(const Architecture&, const Layer&, int64_t micro);
// Those of attention itself in a block's forward: q k^T, and the scores times v.
double attention_flops(const Architecture&, int64_t micro);

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
