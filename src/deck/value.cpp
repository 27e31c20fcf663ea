#include "value.hpp"

#include "voltapile/base/error.hpp"
#include "voltapile/base/format.hpp"

namespace voltapile {

namespace {

// The code point that starts at `at`, which moves behind it.
uint32_t take_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  const size_t length = first < 0x80                    ? 1
                        : first >= 0xC2 && first < 0xE0 ? 2
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  bool good = length > 0 && at + length <= text.size();
  uint32_t point = length == 1 ? first : first & (0x7Fu >> length);
  for (size_t i = 1; good && i < length; ++i) {
    good = (byte(at + i) & 0xC0) == 0x80;
    point = point << 6 | (byte(at + i) & 0x3Fu);
  }
  // Longer forms than needed and surrogates are not UTF-8, and TOML would not take them back.
  good = good && !(length == 3 && point < 0x800) && !(length == 4 && point < 0x10000) &&
         !(point >= 0xD800 && point < 0xE000) && point <= 0x10FFFF;
  if (!good)
    throw Error(ExitCode::bad_input,
                format("a name in the deck has byte 0x{:02X} at position {}, which is not UTF-8: "
                       "rename the file or folder",
                       first, at));
  at += length;
  return point;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 60))
    result += c >= 0x20 && c < 0x7F ? std::string(1, c)
                                    : format("\\x{:02X}", static_cast<unsigned char>(c));
  return result + (text.size() > 60 ? " ..." : "");
}

std::string toml_string(std::string_view text) {
  std::string result = "\"";
  for (size_t at = 0; at < text.size();) {
    const uint32_t point = take_code_point(text, at);
    if (point == '"' || point == '\\') result += {'\\', static_cast<char>(point)};
    else if (point >= 0x20 && point < 0x7F) result += static_cast<char>(point);
    else result += point < 0x10000 ? format("\\u{:04X}", point) : format("\\U{:08X}", point);
  }
  return result + "\"";
}

std::string TomlValue::shown() const {
  constexpr size_t kLongest = 60;
  struct Show {
    std::string operator()(const Other& other) const { return other.what; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return format("{}", value); }
    std::string operator()(double value) const {
      const std::string text = format("{}", value);
      return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
    }
    std::string operator()(const std::string& value) const { return toml_string(value); }
    std::string operator()(const std::vector<TomlValue>& list) const {
      std::string text = "[";
      for (size_t i = 0; i < list.size() && text.size() <= kLongest; ++i)
        text += (i > 0 ? ", " : "") + list[i].shown();
      return text + "]";
    }
  };
  std::string text = std::visit(Show{}, data);
  if (text.size() > kLongest) text = text.substr(0, kLongest - 4) + " ...";
  return text;
}

}  // namespace voltapile
