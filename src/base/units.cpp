#include "voltapile/base/units.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "voltapile/base/format.hpp"

namespace voltapile {

namespace {

// A number at the front of `text`, which is then shortened; spaces after it are dropped.
std::optional<double> take_number(std::string_view& text) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || value < 0 || !std::isfinite(value)) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return value;
}

}  // namespace

std::optional<int64_t> parse_bytes(std::string_view text) {
  const auto number = take_number(text);
  if (!number) return std::nullopt;
  static constexpr std::array<std::pair<std::string_view, double>, 10> kUnits{{{"", 1},
                                                                               {"B", 1},
                                                                               {"kB", 1e3},
                                                                               {"MB", 1e6},
                                                                               {"GB", 1e9},
                                                                               {"TB", 1e12},
                                                                               {"KiB", 0x1p10},
                                                                               {"MiB", 0x1p20},
                                                                               {"GiB", 0x1p30},
                                                                               {"TiB", 0x1p40}}};
  for (const auto& [unit, factor] : kUnits) {
    if (text != unit) continue;
    const double bytes = *number * factor;
    if (bytes > 9e18) return std::nullopt;
    return static_cast<int64_t>(std::llround(bytes));
  }
  return std::nullopt;
}

std::optional<double> parse_seconds(std::string_view text) {
  double seconds = 0, last_factor = 1e18;
  if (text.empty()) return std::nullopt;
  while (!text.empty()) {
    const auto number = take_number(text);
    if (!number || text.empty()) return std::nullopt;
    double factor = 0;
    switch (text.front()) {
      case 'd': factor = 86400; break;
      case 'h': factor = 3600; break;
      case 'm': factor = 60; break;
      case 's': factor = 1; break;
      default: return std::nullopt;
    }
    if (factor >= last_factor) return std::nullopt;  // "30m1h" and "1h1h" are slips
    last_factor = factor;
    seconds += *number * factor;
    text.remove_prefix(1);
  }
  return seconds;
}

namespace {
// Three significant digits.
std::string digits3(double value) {
  const double size = std::abs(value);
  return format("{:.{}f}", value, size >= 99.95 || value == 0 ? 0 : size >= 9.995 ? 1 : 2);
}
}  // namespace

std::string show_bytes(double bytes) {
  static constexpr std::array<std::string_view, 6> kUnits{"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 999.5 && unit + 1 < kUnits.size()) bytes /= 1e3, ++unit;
  return unit == 0 ? format("{:.0f} B", bytes) : format("{} {}", digits3(bytes), kUnits[unit]);
}

std::string show_seconds(double seconds) {
  if (!(seconds >= 0)) return "?";
  if (seconds == 0) return "0 s";
  if (seconds < 0.9995e-3) return format("{} us", digits3(seconds * 1e6));
  if (seconds < 0.9995) return format("{} ms", digits3(seconds * 1e3));
  if (seconds < 59.95) return format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  return format("{}d{:02}h", whole / 86400, whole / 3600 % 24);
}

std::string show_count(double count) {
  static constexpr std::array<std::string_view, 6> kUnits{"", " k", " M", " B", " T", " Q"};
  size_t unit = 0;
  while (std::abs(count) >= 999.5 && unit + 1 < kUnits.size()) count /= 1e3, ++unit;
  return unit == 0 ? format("{:.0f}", count) : format("{}{}", digits3(count), kUnits[unit]);
}

std::string show_flops(double flops) {
  static constexpr std::string_view kUnits[] = {"FLOP",  "kFLOP", "MFLOP", "GFLOP",
                                                "TFLOP", "PFLOP", "EFLOP", "ZFLOP"};
  size_t unit = 0;
  while (flops >= 999.5 && unit + 1 < std::size(kUnits)) flops /= 1e3, ++unit;
  return format("{:.3g} {}", flops, kUnits[unit]);
}

std::string show_grouped(int64_t count) {
  std::string text = format("{}", count < 0 ? -count : count);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<size_t>(at), ",");
  return count < 0 ? "-" + text : text;
}

}  // namespace voltapile
