// The only file that includes toml++.
#include <algorithm>
#include <cctype>
#include <optional>

#include "voltapile/base/error.hpp"
#include "voltapile/base/format.hpp"

#include "value.hpp"

namespace {
struct FailedAssert {};
[[noreturn]] void throw_failed_assert() { throw FailedAssert{}; }
}  // namespace

// toml++ 3.3 asserts on some malformed texts ("[&" is one) and is undefined without asserts. The
// library's compiled twin would keep its own assert, hence header only.
#undef TOML_SHARED_LIB
#undef TOML_HEADER_ONLY
#define TOML_HEADER_ONLY 1
#define TOML_ASSERT(condition) ((condition) ? static_cast<void>(0) : throw_failed_assert())
#include <toml++/toml.h>

namespace voltapile {

namespace {

constexpr size_t kLongestText = 1 << 20, kLongestLine = 4096;
constexpr int kMostRepairs = 50;

TextPlace place_of(const toml::source_region& region) {
  return {static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
}

TomlValue convert(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return {value->get()};
  if (const auto* value = node.as_integer()) return {value->get()};
  if (const auto* value = node.as_floating_point()) return {value->get()};
  if (const auto* value = node.as_string()) return {value->get()};
  if (const auto* array = node.as_array()) {
    std::vector<TomlValue> list;
    for (const toml::node& element : *array) list.push_back(convert(element));
    return {std::move(list)};
  }
  return {TomlValue::Other{node.is_table() ? "{a table}" : "a date or time"}};
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

size_t longest_line(std::string_view text) {
  size_t longest = 0;
  for (const std::string_view line : lines_of(text)) longest = std::max(longest, line.size());
  return longest;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  return text;
}

bool is_good_byte(std::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  const bool line_end = byte == '\r' && at + 1 < text.size() && text[at + 1] == '\n';
  return byte == '\n' || byte == '\t' || line_end || (byte >= 0x20 && byte < 0x7F);
}

// Bytes that no deck needs and that the parser was never fuzzed with; a file that cannot be a deck.
void check_bytes(std::string_view text, std::vector<Fault>& faults) {
  constexpr size_t kEnough = 10;
  int line = 1, column = 0;
  bool before = true;  // one fault for a run of bad bytes
  for (size_t i = 0; i < text.size() && faults.size() < kEnough; ++i) {
    const bool good = is_good_byte(text, i);
    ++column;
    if (!good && before)
      faults.push_back({{line, column},
                        format("byte 0x{:02X}: a deck is plain ASCII text, comments too; write "
                               "other letters in strings as \\u00E9",
                               static_cast<unsigned char>(text[i]))});
    before = good;
    if (text[i] == '\n') ++line, column = 0;
    if (column == static_cast<int>(kLongestLine) + 1)
      faults.push_back(
          {{line, column}, format("a line may have at most {} characters", kLongestLine)});
  }
  if (text.size() > kLongestText)
    faults.push_back({{1, 1},
                      format("{} bytes: a deck may have at most {}; is this the right file?",
                             text.size(), kLongestText)});
}

struct Syntax {  // what the parser did not like
  TextPlace place;
  std::string message;
};

bool asserts(std::string_view text) {
  try {
    static_cast<void>(toml::parse(text));
  } catch (const FailedAssert&) { return true; } catch (const toml::parse_error&) {
  }
  return false;
}

// A failed assert names no place. Parsing goes from front to back, so the shortest run of lines
// that fails ends with the guilty one.
TextPlace place_of_assert(std::string_view text) {
  const auto lines = lines_of(text);
  size_t good = 0, bad = lines.size();
  while (bad - good > 1) {
    const size_t middle = (good + bad) / 2;
    const std::string_view last = lines[middle - 1];
    const auto size = static_cast<size_t>(last.data() + last.size() - text.data());
    (asserts(text.substr(0, size)) ? bad : good) = middle;
  }
  const std::string_view line = lines[bad - 1];
  const size_t column = std::min(line.find_first_not_of(" \t"), line.size());
  return {static_cast<int>(bad), static_cast<int>(column) + 1};
}

std::optional<Syntax> parse(std::string_view text, toml::table& table) {
  try {
    table = toml::parse(text);
    return std::nullopt;
  } catch (const toml::parse_error& error) {
    std::string message(error.description());
    constexpr std::string_view kOpening = "Error while parsing ";
    if (message.starts_with(kOpening)) message.erase(0, kOpening.size());
    // It quotes the text, tabs and carriage returns included.
    std::replace_if(
        message.begin(), message.end(), [](unsigned char c) { return !std::isprint(c); }, ' ');
    return Syntax{place_of(error.source()), message};
  } catch (const FailedAssert&) {
    return Syntax{place_of_assert(text), "brackets, quotes or an operator out of place"};
  }
}

bool parses(std::string_view text) {
  toml::table ignored;
  return !parse(text, ignored);
}

bool given_twice(const Syntax& syntax) {
  return syntax.message.find("cannot redefine existing") != std::string::npos;
}

std::string hint_for(std::string_view line) {
  if (parses(line)) return "; is a bracket or quote above it not closed?";
  if (std::count(line.begin(), line.end(), '"') % 2 == 1) return "; is a quote missing?";
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) return "";
  const std::string_view key = trim(line.substr(0, equals)), rest = line.substr(equals + 1);
  const std::string_view value = trim(rest.substr(0, rest.find('#')));
  const std::string better = format("{} = \"{}\"", key, value);
  const bool word =
      std::any_of(value.begin(), value.end(), [](unsigned char c) { return std::isalpha(c); });
  return word && std::isalnum(static_cast<unsigned char>(value.front())) && parses(better)
             ? format("; text needs quotes: {}", better)
             : "";
}

std::string describe(const Syntax& syntax, std::string_view line) {
  std::string tidy(trim(line));
  std::replace_if(
      tidy.begin(), tidy.end(), [](unsigned char c) { return !std::isprint(c); }, ' ');
  const std::string shown = printable(tidy);
  if (given_twice(syntax)) return format("`{}`: given twice; keep one", shown);
  return format("`{}`: not valid TOML: {}{}", shown, syntax.message, hint_for(tidy));
}

// "section.key" of a line that could not be read, as far as one can tell.
std::string broken_name(const std::vector<std::string_view>& lines, size_t number) {
  const std::string_view line = trim(lines[number - 1]);
  const std::string key(line.substr(0, line.find_first_of(" \t=")));
  for (size_t above = number - 1; above > 0; --above) {
    const std::string_view header = trim(lines[above - 1]);
    if (header.starts_with('['))
      return format("{}.{}", trim(header.substr(1, header.find(']') - 1)), key);
  }
  return key;
}

void take_sections(const toml::table& table, RawDeck& raw) {
  for (auto&& [section, node] : table) {
    const std::string name(section.str());
    const auto* keys = node.as_table();
    if (keys == nullptr) {
      raw.entries.push_back(
          {"", name, convert(node), place_of(section.source()), place_of(node.source()), ""});
      continue;
    }
    raw.headers.push_back({name, place_of(section.source())});
    for (auto&& [key, value] : *keys)
      raw.entries.push_back({name, std::string(key.str()), convert(value), place_of(key.source()),
                             place_of(value.source()), ""});
  }
}

}  // namespace

RawDeck read_toml(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // as some editors begin a file
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  RawDeck raw;
  check_bytes(text, raw.faults);
  std::string repaired(text);
  toml::table table;
  if (!raw.faults.empty()) {
    // A letter in a comment or string need not hide what else is wrong.
    for (size_t i = 0; i < text.size(); ++i)
      if (!is_good_byte(text, i)) repaired[i] = '_';
    raw.readable =
        text.size() <= kLongestText && longest_line(text) <= kLongestLine && parses(repaired);
    if (!raw.readable) return raw;
  }
  // The parser stops at its first complaint. A line that is wrong by itself is blanked and the rest
  // read again, so that one slip does not hide the others.
  const auto lines = lines_of(text);
  for (int repair = 0; auto syntax = parse(repaired, table); ++repair) {
    const auto number = static_cast<size_t>(syntax->place.line);
    const std::string_view line =
        number >= 1 && number <= lines.size() ? lines[number - 1] : std::string_view();
    raw.faults.push_back({syntax->place, describe(*syntax, line)});
    const bool twice = given_twice(*syntax), own_fault = twice == parses(line);
    if (trim(line).empty() || trim(line).front() == '[' || !own_fault || repair == kMostRepairs) {
      raw.readable = false;
      return raw;
    }
    if (!twice) raw.broken.push_back(broken_name(lines, number));
    std::fill_n(repaired.begin() + (line.data() - text.data()), line.size(), ' ');
  }
  take_sections(table, raw);
  return raw;
}

TomlValue read_value(std::string_view text) {
  toml::table table;
  const auto syntax = parse(format("x = {}", text), table);
  VP_CHECK(!syntax && table.size() == 1, "{} is not a TOML value", text);
  return convert(table.begin()->second);
}

Entry read_override(const std::string& text, std::vector<Fault>& faults) {
  Entry entry;
  const size_t equals = text.find('=');
  const std::string_view name = trim(std::string_view(text).substr(0, equals));
  const size_t dot = name.find('.');
  if (equals == std::string::npos || dot == std::string_view::npos || dot == 0 ||
      dot + 1 == name.size()) {
    faults.push_back({{},
                      format("\"{}\": write section.key=value, for example --set run.steps=100",
                             printable(text))});
    return entry;
  }
  std::vector<Fault> bad_bytes;
  check_bytes(text, bad_bytes);
  if (!bad_bytes.empty() || text.find('\n') != std::string::npos) {
    faults.push_back({{}, format("{}: write plain ASCII text on one line", printable(name))});
    return entry;
  }
  entry.section = name.substr(0, dot);
  entry.key = name.substr(dot + 1);
  entry.bare = trim(std::string_view(text).substr(equals + 1));
  toml::table table;
  const bool is_toml = !parse(format("x = {}", entry.bare), table) && table.size() == 1;
  entry.value = is_toml ? convert(table.begin()->second) : TomlValue{entry.bare};
  return entry;
}

}  // namespace voltapile
