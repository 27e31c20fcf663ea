#include "codecs.hpp"

#include <charconv>
#include <cmath>

#include "voltapile/base/units.hpp"

namespace voltapile {

namespace {

bool is_printable(const std::string& text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return false;
  return true;
}

const std::string* text_in(const TomlValue& value) { return std::get_if<std::string>(&value.data); }

}  // namespace

std::string Integer::allowed() const {
  return high == kAnyInteger ? format("an integer of at least {}", low)
                             : format("an integer from {} to {}", low, high);
}

bool Integer::read_integer(const TomlValue& value, int64_t& out) const {
  const auto* integer = std::get_if<int64_t>(&value.data);
  if (integer == nullptr || *integer < low || *integer > high) return false;
  out = *integer;
  return true;
}

std::string Number::allowed() const {
  const bool open = low_edge == Edge::open;
  if (high == kAnyNumber)
    return open ? format("a number above {}", low) : format("a number of at least {}", low);
  const std::string limit = high_edge == Edge::open ? format("up to, but not including, {}", high)
                                                    : format("to {}", high);
  return open ? format("a number above {}, {}", low, limit)
              : format("a number from {} {}", low, limit);
}

bool Number::read(const TomlValue& value, double& out) const {
  double number = 0;
  if (const auto* integer = std::get_if<int64_t>(&value.data))
    number = static_cast<double>(*integer);
  else if (const auto* real = std::get_if<double>(&value.data)) number = *real;
  else return false;
  const bool above = low_edge == Edge::open ? number > low : number >= low;
  const bool below = high_edge == Edge::open ? number < high : number <= high;
  if (!above || !below || !std::isfinite(number)) return false;  // also false for NaN
  out = number;
  return true;
}

std::string Number::write(double value) const {
  const std::string text = format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

bool Text::read(const TomlValue& value, std::string& out) const {
  const std::string* text = text_in(value);
  if (text == nullptr || !is_printable(*text)) return false;
  out = *text;
  return true;
}

std::string FolderName::allowed() const {
  return "a folder name in quotes, without \"/\", not starting with \".\"";
}

bool FolderName::read(const TomlValue& value, std::string& out) const {
  const std::string* text = text_in(value);
  if (text == nullptr || text->empty() || text->size() > 200 || !is_printable(*text)) return false;
  if (text->front() == '.' || text->find('/') != std::string::npos) return false;
  out = *text;
  return true;
}

std::string StepWindow::allowed() const {
  return "\"first:end\" with first < end, for example \"100:105\", or \"\" for none";
}

bool StepWindow::read(const TomlValue& value, std::string& out) const {
  const std::string* text = text_in(value);
  if (text == nullptr) return false;
  if (!text->empty()) {
    int64_t first = 0, end = 0;
    const char* const stop = text->data() + text->size();
    const auto left = std::from_chars(text->data(), stop, first);
    if (left.ec != std::errc() || left.ptr == stop || *left.ptr != ':') return false;
    const auto right = std::from_chars(left.ptr + 1, stop, end);
    if (right.ec != std::errc() || right.ptr != stop || first < 0 || first >= end) return false;
  }
  out = *text;
  return true;
}

bool Flag::read(const TomlValue& value, bool& out) const {
  const auto* flag = std::get_if<bool>(&value.data);
  if (flag != nullptr) out = *flag;
  return flag != nullptr;
}

std::string Bytes::allowed() const {
  const std::string least = low > 1 ? format(", at least {}", low) : std::string();
  return format("a size such as \"32 GB\" (1e9) or \"32 GiB\" (2^30){}", least);
}

bool Bytes::read(const TomlValue& value, int64_t& out) const {
  const auto* integer = std::get_if<int64_t>(&value.data);
  const std::string* text = text_in(value);
  std::optional<int64_t> bytes;
  if (integer != nullptr) bytes = *integer;
  if (text != nullptr) bytes = parse_bytes(*text);
  // Up to 2^53: beyond, a double no longer holds each byte, and no machine has that much.
  if (!bytes || *bytes < low || *bytes > int64_t{1} << 53) return false;
  out = *bytes;
  return true;
}

std::string Bytes::write(int64_t value) const {
  static constexpr std::array<std::pair<std::string_view, int64_t>, 4> kUnits{
      {{"GB", 1'000'000'000}, {"GiB", 1 << 30}, {"MB", 1'000'000}, {"MiB", 1 << 20}}};
  for (const auto& [unit, size] : kUnits)
    if (value % size == 0) return format("\"{} {}\"", value / size, unit);
  return format("\"{} B\"", value);
}

std::string Seconds::allowed() const {
  return "a time such as \"90s\", \"30m\" or \"71h30m\", up to \"366d\"";
}

bool Seconds::read(const TomlValue& value, double& out) const {
  const std::string* text = text_in(value);
  const auto seconds = text != nullptr ? parse_seconds(*text) : std::nullopt;
  if (!seconds || *seconds < 1 || *seconds > 366 * 86400.0) return false;
  out = *seconds;
  return true;
}

std::string Seconds::write(double value) const {
  const auto whole = static_cast<int64_t>(value);
  if (static_cast<double>(whole) != value) return format("\"{}s\"", value);
  std::string text;
  if (whole >= 3600) text += format("{}h", whole / 3600);
  if (whole / 60 % 60 > 0) text += format("{}m", whole / 60 % 60);
  if (whole % 60 > 0) text += format("{}s", whole % 60);
  return toml_string(text);
}

std::string OneOrTwo::allowed() const {
  return format("an integer from {} to {}, or two as [height, width]", low, high);
}

bool OneOrTwo::read(const TomlValue& value, std::array<int64_t, 2>& out) const {
  const Integer element{low, high};
  int64_t side = 0;
  if (element.read_integer(value, side)) return out = {side, side}, true;
  const auto* list = std::get_if<std::vector<TomlValue>>(&value.data);
  std::array<int64_t, 2> both{};
  if (list == nullptr || list->size() != 2 || !element.read_integer((*list)[0], both[0]) ||
      !element.read_integer((*list)[1], both[1]))
    return false;
  out = both;
  return true;
}

std::string OneOrTwo::write(const std::array<int64_t, 2>& value) const {
  return value[0] == value[1] ? format("{}", value[0]) : format("[{}, {}]", value[0], value[1]);
}

std::string Numbers::allowed() const {
  return format("a list of {}, each {}", how_many, element.allowed());
}

bool Numbers::read_list(const TomlValue& value, std::vector<double>& out) const {
  const auto* list = std::get_if<std::vector<TomlValue>>(&value.data);
  if (list == nullptr) return false;
  std::vector<double> numbers(list->size());
  for (size_t i = 0; i < list->size(); ++i)
    if (!element.read((*list)[i], numbers[i])) return false;
  out = std::move(numbers);
  return true;
}

bool Numbers::read(const TomlValue& value, std::vector<double>& out) const {
  return read_list(value, out);
}

bool Numbers::read(const TomlValue& value, std::array<double, 2>& out) const {
  std::vector<double> list;
  if (!read_list(value, list) || list.size() != 2) return false;
  out = {list[0], list[1]};
  return true;
}

std::string Numbers::write(const std::vector<double>& value) const {
  std::vector<std::string> texts;
  for (const double number : value) texts.push_back(element.write(number));
  return "[" + join(texts, ", ") + "]";
}

std::string Numbers::write(const std::array<double, 2>& value) const {
  return write(std::vector<double>(value.begin(), value.end()));
}

bool Texts::read(const TomlValue& value, std::vector<std::string>& out) const {
  const auto* list = std::get_if<std::vector<TomlValue>>(&value.data);
  std::vector<std::string> texts;
  const Text element{what};
  for (const TomlValue& each : list != nullptr ? *list : std::vector<TomlValue>{value}) {
    if (!element.read(each, texts.emplace_back()) || texts.back().empty()) return false;
  }
  out = std::move(texts);
  return true;
}

std::string Texts::write(const std::vector<std::string>& value) const {
  std::vector<std::string> texts;
  for (const std::string& text : value) texts.push_back(toml_string(text));
  return "[" + join(texts, ", ") + "]";
}

std::string list_words(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + format("\"{}\"", words[i]);
  return text;
}

}  // namespace voltapile
