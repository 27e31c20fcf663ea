// Functions of the CUDA driver, which is opened when there is one, never by the linker.
#pragma once
#include <dlfcn.h>

#include "voltapile/base/error.hpp"

namespace voltapile::cuda {

template <class Function>
Function driver_function(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  VP_CHECK(found != nullptr, "the CUDA driver has no {}", name);
  return reinterpret_cast<Function>(found);
}

}  // namespace voltapile::cuda
