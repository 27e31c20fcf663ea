// Numbers with units as people write them, and back. "32 GB" is 32e9 bytes, "32 GiB" is 32 * 2^30;
// "90s", "30m", "71h30m", "2d" are durations.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace voltapile {

std::optional<int64_t> parse_bytes(std::string_view text);
std::optional<double> parse_seconds(std::string_view text);
std::string show_bytes(double bytes);      // "16.1 GB"
std::string show_seconds(double seconds);  // "1h02m", "3m05s", "4.2 s", "12 ms"
std::string show_count(double count);      // "32.2e9" as "32.2 B", "805 M", "12.3 k"
std::string show_flops(double flops);      // "1.23 TFLOP"
std::string show_grouped(int64_t count);   // "60,000"

}  // namespace voltapile
