// Which tensors of a safetensors file become which parameters of a deck's model.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "voltapile/architecture/architecture.hpp"

#include "resample.hpp"
#include "safetensors.hpp"

namespace voltapile {

// The position embedding's table in the file: rows of prefix tokens (0 or 1), then a grid's.
struct PositionRows {
  int64_t prefix = 0;
  Grid grid;
};

struct WeightSource {
  const Parameter* parameter = nullptr;
  std::vector<const safetensors::Tensor*> parts;  // along dim 0; none: a new run's values
  std::optional<PositionRows> position;           // of pos_embed
};

struct Fit {
  std::vector<WeightSource> sources;  // one for each parameter, in the model's order
  std::vector<std::string> notes;     // what is not taken over one to one
  std::vector<std::string> faults;    // each tensor that is missing, superfluous or wrong
};
// Points into both arguments.
Fit fit_weights(const safetensors::Layout& layout, const Architecture& architecture);

}  // namespace voltapile
