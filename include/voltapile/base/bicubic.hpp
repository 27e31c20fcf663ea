// Resizing along one axis by Keys' cubic filter, as Pillow and PyTorch (antialias) do it.
#pragma once
#include <cstdint>
#include <vector>

namespace voltapile {

// What one output is made of: weights, with a sum of 1, of the inputs from `first` on.
struct Taps {
  int64_t first = 0;
  std::vector<double> weights;
};

// Of the output whose middle lies at `center` among `inputs` ones (input i covers i to i + 1). The
// filter has a = -0.5 and is `stretch` times as wide, at least 1: inputs an output where there are
// fewer outputs. What lies beyond the ends is left out.
Taps bicubic_taps(double center, double stretch, int64_t inputs);

}  // namespace voltapile
