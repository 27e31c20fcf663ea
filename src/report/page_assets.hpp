// Private to report: the page's style and script.
#pragma once
#include <string_view>

namespace voltapile {

extern const std::string_view kPageStyle, kPageScript;

}  // namespace voltapile
