#pragma once
namespace voltapile {
inline constexpr const char* kVersion = "0.1.0";
}
