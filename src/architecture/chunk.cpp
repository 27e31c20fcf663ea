#include <algorithm>

#include "voltapile/architecture/architecture.hpp"

namespace voltapile {
namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes, size_t alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

const Layer& layer_at(const Architecture& a, int layer) {
  return a.layers[static_cast<size_t>(layer)];
}

class LayoutBuilder {
 public:
  void add(int layer, Tensor tensor) {
    const size_t bytes = aligned(tensor.bytes());
    layout_.tensors.push_back({layer, std::move(tensor), layout_.bytes});
    layout_.bytes += bytes;
  }
  enum class Input { kept, left_out };
  void add_saved(const Architecture& a, int layer, const Sizes& s, Input input) {
    for (Tensor& tensor : saved_tensors(a, layer_at(a, layer), s))
      if (input == Input::kept || tensor.name != "input") add(layer, std::move(tensor));
  }
  TensorLayout take() { return std::move(layout_); }

 private:
  TensorLayout layout_;
};
using Input = LayoutBuilder::Input;

}  // namespace

size_t total_bytes(const std::vector<Tensor>& tensors, size_t alignment) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += aligned(tensor.bytes(), alignment);
  return bytes;
}

const PlacedTensor* TensorLayout::find(int layer, std::string_view name) const {
  for (const PlacedTensor& placed : tensors)
    if (placed.layer == layer && placed.tensor.name == name) return &placed;
  return nullptr;
}

std::vector<Segment> segments(const Architecture& a, const ChunkLayers& chunk) {
  int first = chunk.first_layer, end = chunk.end_layer;
  if (layer_at(a, first).kind == LayerKind::embedding) ++first;
  if (layer_at(a, end - 1).kind == LayerKind::head) --end;
  const int blocks = end - first;
  VP_CHECK(blocks > 0, "layers {}:{} hold no block", chunk.first_layer, chunk.end_layer);
  const int length = chunk.segment_layers == 0 ? blocks : std::min(chunk.segment_layers, blocks);
  const int count = (blocks + length - 1) / length;
  std::vector<Segment> result;
  for (int i = 0; i < count; ++i)
    result.push_back({first + blocks * i / count, first + blocks * (i + 1) / count});
  return result;
}

TensorLayout chunk_saved(const Architecture& a, const ChunkLayers& chunk, const Sizes& s) {
  LayoutBuilder builder;
  const auto input = [&](int layer) {
    return layer == chunk.first_layer ? Input::left_out : Input::kept;
  };
  if (chunk.segment_layers == 0) {
    for (int l = chunk.first_layer; l < chunk.end_layer; ++l) builder.add_saved(a, l, s, input(l));
    return builder.take();
  }
  for (const Segment& segment : segments(a, chunk))
    if (input(segment.first_layer) == Input::kept) {
      Tensor tensor = boundary_tensor(a, s);
      tensor.name = "input";
      builder.add(segment.first_layer, std::move(tensor));
    }
  const int last = chunk.end_layer - 1;
  if (layer_at(a, last).kind == LayerKind::head) builder.add_saved(a, last, s, Input::kept);
  return builder.take();
}

TensorLayout chunk_deferred(const Architecture& a, const ChunkLayers& chunk, const Sizes& s) {
  LayoutBuilder builder;
  for (int l = chunk.first_layer; l < chunk.end_layer; ++l)
    for (Tensor& tensor : deferred_tensors(a, layer_at(a, l), s, chunk.segment_layers != 0))
      builder.add(l, std::move(tensor));
  return builder.take();
}

TensorLayout segment_saved(const Architecture& a, const Segment& segment, const Sizes& s) {
  LayoutBuilder builder;
  for (int l = segment.first_layer; l < segment.end_layer; ++l)
    builder.add_saved(a, l, s, l == segment.first_layer ? Input::left_out : Input::kept);
  return builder.take();
}

TensorLayout layer_saved(const Architecture& a, int layer, const Sizes& s) {
  LayoutBuilder builder;
  builder.add_saved(a, layer, s, Input::left_out);
  return builder.take();
}

TensorLayout layer_workspace(const Architecture& a, int layer, const Sizes& s) {
  LayoutBuilder builder;
  for (Tensor& tensor : workspace_tensors(a, layer_at(a, layer), s))
    builder.add(layer, std::move(tensor));
  return builder.take();
}

ChunkWorkspace chunk_workspace(const Architecture& a, const ChunkLayers& chunk, const Sizes& s,
                               bool training) {
  const size_t boundary = aligned(boundary_tensor(a, s).bytes());
  size_t kept = 0, temporaries = 0;
  if (training && chunk.segment_layers != 0)
    for (const Segment& segment : segments(a, chunk))
      kept = std::max(kept, segment_saved(a, segment, s).bytes);
  for (int l = chunk.first_layer; l < chunk.end_layer; ++l) {
    if (!training) kept = std::max(kept, layer_saved(a, l, s).bytes);
    temporaries = std::max(temporaries, layer_workspace(a, l, s).bytes);
  }
  ChunkWorkspace w;
  w.stream_offset = 0;
  w.stream_gradient_offset = boundary;
  w.kept_offset = training ? 2 * boundary : boundary;
  w.layer_offset = w.kept_offset + kept;
  w.bytes = w.layer_offset + temporaries;
  return w;
}

}  // namespace voltapile
