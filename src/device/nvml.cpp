#include "voltapile/device/nvml.hpp"

#include <dlfcn.h>

namespace voltapile {

Nvml::Nvml(const std::string& library) : library_(dlopen(library.c_str(), RTLD_LAZY)) {}

Nvml::~Nvml() {
  if (library_ == nullptr) return;
  if (started_) call("nvmlShutdown");
  dlclose(library_);
}

void* Nvml::symbol(const char* name) const {
  return library_ == nullptr ? nullptr : dlsym(library_, name);
}

}  // namespace voltapile
