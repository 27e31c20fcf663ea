#pragma once
#include <string>

namespace voltapile {

// Name of this machine, for messages.
std::string host_name();

}  // namespace voltapile
