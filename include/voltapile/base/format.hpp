// Text formatting for the whole program: fmt, in its light header (g++ 12 has no <format>).
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace voltapile {
// An object, not a function: so an argument of namespace std does not bring std::format into the
// call.
struct Format {
  template <class... Arguments>
  std::string operator()(fmt::format_string<Arguments...> text, Arguments&&... arguments) const {
    return fmt::format(text, std::forward<Arguments>(arguments)...);
  }
};
inline constexpr Format format{};

std::string join(const std::vector<std::string>& parts, std::string_view separator);
// As one word of a shell: quoted where it would read it otherwise.
std::string shell_word(std::string_view text);
}  // namespace voltapile
