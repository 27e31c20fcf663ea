// Text formatting for the whole program: fmt, in its light header (g++ 12 has no <format>).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

namespace voltapile {
using fmt::format;

std::string join(const std::vector<std::string>& parts, std::string_view separator);
}  // namespace voltapile
