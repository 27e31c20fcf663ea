// Host time for measuring.
#pragma once
#include <chrono>

namespace voltapile {

// Seconds of a clock that never goes back.
inline double now_seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace voltapile
