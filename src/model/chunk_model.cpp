#include "voltapile/model/chunk_model.hpp"

#include <optional>

#include "block.hpp"
#include "embedding.hpp"
#include "head.hpp"

namespace voltapile {
namespace {

ChunkLayers layers_of(const ChunkShape& shape) {
  return {shape.first_layer, shape.end_layer, shape.segment_layers};
}

}  // namespace

ChunkBytes chunk_bytes(const Architecture& architecture, const ChunkShape& shape,
                       const Sizes& sizes, bool split_backward) {
  const ChunkLayers chunk = layers_of(shape);
  ChunkBytes bytes;
  bytes.workspace = chunk_workspace(architecture, chunk, sizes, shape.training).bytes;
  if (!shape.training) return bytes;
  bytes.saved = chunk_saved(architecture, chunk, sizes).bytes;
  if (split_backward) bytes.deferred = chunk_deferred(architecture, chunk, sizes).bytes;
  return bytes;
}

struct ChunkModel::Impl {
  Impl(const ModelContext& model, const ChunkShape& chunk_shape);

  LayerTables tables_of(int layer) const;
  const LayerTables& tables(int layer) const {
    return layers[static_cast<size_t>(layer - shape.first_layer)];
  }
  const Block& block(int layer) const {
    return blocks[static_cast<size_t>(layer - parts.front().first_layer)];
  }
  LayerMemory bind(const ChunkMemory&) const;
  TensorView stream(const ChunkMemory&, size_t offset) const;  // (R, C)
  TensorView input_of(int layer, const ChunkMemory&) const;    // (R, C)
  TensorView output_of(int layer, const ChunkMemory&) const;   // (R, C)

  void forward(const MicroStep&, const ChunkMemory&) const;
  void rebuild(const Segment&, const MicroStep&, const ChunkMemory&) const;
  void backward(Gradients, const MicroStep&, const ChunkMemory&);

  LayerContext context;
  ChunkShape shape;
  FlatLayout flat;
  std::vector<Segment> parts;
  ChunkWorkspace workspace;
  std::vector<LayerTables> layers;
  std::optional<Embedding> embedding;
  std::vector<Block> blocks;
  std::optional<Head> head;
};

ChunkModel::Impl::Impl(const ModelContext& model, const ChunkShape& chunk_shape)
    : context(model, chunk_shape.training),
      shape(chunk_shape),
      flat(flat_layout(*model.architecture, shape.first_layer, shape.end_layer, model.sizes.tp, 1)),
      parts(segments(*model.architecture, layers_of(shape))),
      workspace(
          chunk_workspace(*model.architecture, layers_of(shape), model.sizes, shape.training)) {
  VP_CHECK(context.tensor->size() == context.sizes.tp, "{} tensor ranks in the sizes, {} in {}",
           context.sizes.tp, context.tensor->size(), context.tensor->name);
  VP_CHECK(shape.segment_layers == 0 || context.sizes.recompute != Recompute::selective,
           "segments of {} layers with selective recomputation", shape.segment_layers);
  VP_CHECK(shape.segment_layers == 0 || !context.sizes.rebuild_attention,
           "segments of {} layers with attention rebuilt", shape.segment_layers);
  for (int layer = shape.first_layer; layer < shape.end_layer; ++layer) {
    layers.push_back(tables_of(layer));
    const Layer& description = context.architecture->layers[static_cast<size_t>(layer)];
    switch (description.kind) {
      case LayerKind::embedding: embedding.emplace(context, layers.back()); break;
      case LayerKind::block: blocks.emplace_back(context, description.block, layers.back()); break;
      case LayerKind::head: head.emplace(context, layers.back()); break;
    }
  }
}

LayerTables ChunkModel::Impl::tables_of(int layer) const {
  const Architecture& a = *context.architecture;
  const ChunkLayers chunk = layers_of(shape);
  LayerTables tables;
  tables.parameters = ParameterTable(a, flat, layer, context.sizes.tp);
  tables.workspace = TensorTable(layer_workspace(a, layer, context.sizes), layer);
  if (!shape.training) {
    tables.rebuilt = TensorTable(layer_saved(a, layer, context.sizes), layer);
    return tables;
  }
  tables.kept = TensorTable(chunk_saved(a, chunk, context.sizes), layer);
  tables.deferred = TensorTable(chunk_deferred(a, chunk, context.sizes), layer);
  if (shape.segment_layers == 0) return tables;
  for (const Segment& part : parts)
    if (part.first_layer <= layer && layer < part.end_layer)
      tables.rebuilt = TensorTable(segment_saved(a, part, context.sizes), layer);
  return tables;
}

LayerMemory ChunkModel::Impl::bind(const ChunkMemory& memory) const {
  return {.weights = memory.weights,
          .gradients = memory.gradients,
          .kept = memory.saved,
          .rebuilt = memory.workspace + workspace.kept_offset,
          .deferred = memory.deferred,
          .workspace = memory.workspace + workspace.layer_offset};
}

TensorView ChunkModel::Impl::stream(const ChunkMemory& memory, size_t offset) const {
  const Tensor boundary = boundary_tensor(*context.architecture, context.sizes);
  return {memory.workspace + offset, boundary.dtype, boundary.shape};
}

TensorView ChunkModel::Impl::input_of(int layer, const ChunkMemory& memory) const {
  if (layer == shape.first_layer) return memory.input;
  const TensorView kept = tables(layer).saved("input", bind(memory));
  return kept ? kept : stream(memory, workspace.stream_offset);
}

TensorView ChunkModel::Impl::output_of(int layer, const ChunkMemory& memory) const {
  return layer + 1 == shape.end_layer ? memory.output : input_of(layer + 1, memory);
}

void ChunkModel::Impl::forward(const MicroStep& step, const ChunkMemory& memory) const {
  const LayerMemory m = bind(memory);
  if (embedding) embedding->forward(m, memory.pictures, output_of(shape.first_layer, memory));
  for (int l = parts.front().first_layer; l < parts.back().end_layer; ++l)
    block(l).forward(m, step, input_of(l, memory), output_of(l, memory));
  if (head) head->forward(m, step, memory.targets, input_of(shape.end_layer - 1, memory));
}

void ChunkModel::Impl::rebuild(const Segment& part, const MicroStep& step,
                               const ChunkMemory& memory) const {
  for (int l = part.first_layer; l < part.end_layer; ++l) {
    const bool needed = l + 1 < part.end_layer;  // nobody reads the last output again
    block(l).forward(bind(memory), step, input_of(l, memory),
                     needed ? output_of(l, memory) : TensorView{});
  }
}

void ChunkModel::Impl::backward(Gradients part, const MicroStep& step, const ChunkMemory& memory) {
  const LayerMemory m = bind(memory);
  const bool rebuilds = shape.segment_layers != 0 && wants_input(part);

  // The gradient of the residual stream is updated in place from layer to layer.
  const TensorView dx =  // (R, C)
      embedding ? stream(memory, workspace.stream_gradient_offset) : memory.input_gradient;
  TensorView dout = memory.output_gradient;  // (R, C)
  if (head) {
    head->backward(part, m, step, memory.targets, dx);
    dout = dx;
  }
  for (auto segment = parts.rbegin(); segment != parts.rend(); ++segment) {
    if (rebuilds && segment != parts.rbegin()) rebuild(*segment, step, memory);
    for (int l = segment->end_layer - 1; l >= segment->first_layer; --l) {
      block(l).backward(part, m, step, input_of(l, memory), dout, dx);
      dout = dx;
    }
  }
  if (embedding && wants_input(part)) embedding->backward(m, memory.pictures, dout);
}

ChunkModel::ChunkModel(const ModelContext& context, const ChunkShape& shape)
    : impl_(std::make_unique<Impl>(context, shape)) {}
ChunkModel::~ChunkModel() = default;

const FlatLayout& ChunkModel::layout() const { return impl_->flat; }

void ChunkModel::forward(const MicroStep& step, const ChunkMemory& memory) {
  impl_->forward(step, memory);
}

void ChunkModel::recompute(const MicroStep& step, const ChunkMemory& memory) {
  VP_CHECK(impl_->shape.segment_layers != 0, "recompute of a chunk that keeps its saved tensors");
  impl_->rebuild(impl_->parts.back(), step, memory);
}

void ChunkModel::backward(const MicroStep& step, const ChunkMemory& memory) {
  impl_->backward(Gradients::both, step, memory);
}

void ChunkModel::backward_input(const MicroStep& step, const ChunkMemory& memory) {
  impl_->backward(Gradients::input, step, memory);
}

void ChunkModel::backward_weight(const MicroStep& step, const ChunkMemory& memory) {
  impl_->backward(Gradients::weight, step, memory);
}

}  // namespace voltapile
