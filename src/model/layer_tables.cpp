#include "layer_tables.hpp"

#include "voltapile/base/error.hpp"

namespace voltapile {

TensorTable::TensorTable(const TensorLayout& layout, int layer) {
  for (const PlacedTensor& placed : layout.tensors)
    if (placed.layer == layer) tensors_.push_back(placed);
}

TensorView TensorTable::at(std::string_view name, std::byte* base) const {
  for (const PlacedTensor& placed : tensors_) {
    if (placed.tensor.name != name) continue;
    VP_CHECK(base != nullptr, "no memory was given for {}", name);
    return {base + placed.offset, placed.tensor.dtype, placed.tensor.shape};
  }
  return {};
}

namespace {
Shape folded(const Shape& shape) {
  if (shape.dims() < 2) return shape;
  return {shape[0], shape.elements() / shape[0]};
}
}  // namespace

ParameterTable::ParameterTable(const Architecture& architecture, const FlatLayout& flat, int layer,
                               int tp) {
  const auto& parameters = architecture.layers[static_cast<size_t>(layer)].parameters;
  for (const FlatEntry& entry : flat.entries) {
    if (entry.layer != layer) continue;
    const Parameter& parameter = parameters[static_cast<size_t>(entry.parameter)];
    places_.push_back(
        {parameter.name, entry.offset, folded(local_shape(parameter, tp)), parameter.trained});
  }
}

const ParameterTable::Place* ParameterTable::find(std::string_view suffix) const {
  for (const Place& place : places_) {
    const std::string_view name = place.name;
    if (name == suffix) return &place;
    // Whole components only: "norm.weight" is not the end of "fc_norm.weight".
    if (name.size() > suffix.size() && name.ends_with(suffix) &&
        name[name.size() - suffix.size() - 1] == '.')
      return &place;
  }
  return nullptr;
}

TensorView ParameterTable::at(std::string_view suffix, const TensorView& flat) const {
  const Place* place = find(suffix);
  if (place == nullptr || !flat) return {};
  return flat.slice_flat(place->offset, place->offset + place->shape.elements())
      .reshaped(place->shape);
}

TensorView ParameterTable::gradient_at(std::string_view suffix, const TensorView& flat) const {
  const Place* place = find(suffix);
  return place != nullptr && place->trained ? at(suffix, flat) : TensorView{};
}

}  // namespace voltapile
