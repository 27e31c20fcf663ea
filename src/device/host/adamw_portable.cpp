#include <algorithm>
#include <cstdint>

#include "adamw_loops.hpp"

namespace voltapile::host {
namespace {

// One element at a time, as the compiler likes to arrange them.
struct Scalar {
  static constexpr int64_t kWidth = 1;
  using Float = float;
  static void fence() {}
};

}  // namespace

constinit const Code kPortable = code_of<Scalar>("portable");

}  // namespace voltapile::host
