// Where named tensors and parameters lie in memory that somebody else owns. Tables are made once;
// binding them to a call's memory is pointer arithmetic.
#pragma once
#include <string_view>
#include <vector>

#include "voltapile/architecture/architecture.hpp"

namespace voltapile {

// Offsets and sizes inside slots are multiples of this, as total_bytes() counts them.
inline constexpr size_t kTensorAlignment = 256;

// A list of intermediates, one after the other.
class TensorTable {
 public:
  TensorTable() = default;
  explicit TensorTable(std::vector<Tensor> tensors);
  // The tensor `name` of a set that starts at `base`; an empty view when the list lacks it: what
  // is kept and what is rebuilt is decided by the lists in `architecture` alone.
  TensorView at(std::string_view name, std::byte* base) const;
  size_t bytes() const { return bytes_; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<size_t> offsets_;
  size_t bytes_ = 0;
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

}  // namespace voltapile
