// Where named tensors and parameters lie in memory that somebody else owns. Tables are made once;
// binding them to a call's memory is pointer arithmetic.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "voltapile/architecture/architecture.hpp"

namespace voltapile {

// The intermediates of one layer inside one of its chunk's layouts.
class TensorTable {
 public:
  TensorTable() = default;
  TensorTable(const TensorLayout& layout, int layer);
  // The tensor `name` in the memory that starts at `base`; an empty view when the layout lacks it:
  // what is kept and what is rebuilt is decided by the lists in `architecture` alone.
  TensorView at(std::string_view name, std::byte* base) const;

 private:
  std::vector<PlacedTensor> tensors_;
};

// The parameters of one layer inside its chunk's flat buffer, found by the end of their names.
class ParameterTable {
 public:
  ParameterTable() = default;
  // `flat` covers the chunk; `layer` indexes Architecture::layers.
  ParameterTable(const Architecture& architecture, const FlatLayout& flat, int layer, int tp);
  // Shape as local_shape() gives it, with all dims but the first folded for matrices. Empty when
  // the layer has no such parameter or `flat` is empty.
  TensorView at(std::string_view suffix, const TensorView& flat) const;
  // As at(), and empty for a fixed table, which has no gradient.
  TensorView gradient_at(std::string_view suffix, const TensorView& flat) const;

 private:
  struct Place {
    std::string name;
    int64_t offset;
    Shape shape;
    bool trained;
  };
  const Place* find(std::string_view suffix) const;
  std::vector<Place> places_;
};

// The memory of one call as a layer sees it.
struct LayerMemory {
  TensorView weights, gradients;  // of the chunk, flat
  std::byte* kept = nullptr;      // chunk_saved
  std::byte* rebuilt = nullptr;   // segment_saved (recomputation) or layer_saved (evaluation)
  std::byte* deferred = nullptr;  // chunk_deferred; split backward only
  std::byte* workspace = nullptr;
};

// All tables of one layer. Lookups give empty views for what is not there.
struct LayerTables {
  ParameterTable parameters;
  TensorTable kept, rebuilt, deferred, workspace;

  TensorView weight(std::string_view name, const LayerMemory& m) const {
    return parameters.at(name, m.weights);
  }
  TensorView gradient(std::string_view name, const LayerMemory& m) const {
    return parameters.gradient_at(name, m.gradients);
  }
  TensorView saved(std::string_view name, const LayerMemory& m) const {
    const TensorView view = kept.at(name, m.kept);
    return view ? view : rebuilt.at(name, m.rebuilt);
  }
  TensorView later(std::string_view name, const LayerMemory& m) const {
    return deferred.at(name, m.deferred);
  }
  TensorView temporary(std::string_view name, const LayerMemory& m) const {
    return workspace.at(name, m.workspace);
  }
};

}  // namespace voltapile
