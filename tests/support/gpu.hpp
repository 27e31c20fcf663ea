// For tests: whether this build and this machine have a GPU.
#pragma once
#include <string>

#include "voltapile/base/error.hpp"
#include "voltapile/device/device.hpp"

namespace voltapile {

// Empty where a CUDA device can be made, else why not.
inline std::string why_no_gpu() {
  if (!cuda_is_built()) return "built without CUDA";
  static const std::string why = [] {
    try {
      make_cuda_device({});
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string();
  }();
  return why;
}

}  // namespace voltapile
