// What a deck file says before the schema gives it meaning: keys with values and places. Free of
// the TOML library, so that one file alone includes it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace voltapile {

// Both from 1. Line 0: the value was given by --set.
struct TextPlace {
  int line = 0, column = 0;
};

struct TomlValue {
  struct Other {  // a kind that no key takes: a table, a date
    std::string what;
  };
  std::variant<Other, bool, int64_t, double, std::string, std::vector<TomlValue>> data;

  std::string shown() const;  // as TOML, shortened to about 60 characters, for messages
};

struct Entry {
  std::string section, key;  // no section: the key stands above the first header
  TomlValue value;
  TextPlace key_place, value_place;
  std::string bare;  // --set only: the value's text before TOML had a look at it
  std::string name() const { return section.empty() ? key : section + "." + key; }
};

struct Fault {
  TextPlace place;
  std::string text;
};

struct Header {
  std::string section;
  TextPlace place;
};

struct RawDeck {
  std::vector<Header> headers;
  std::vector<Entry> entries;
  std::vector<Fault> faults;
  std::vector<std::string> broken;  // names of keys whose lines could not be read
  bool readable = true;             // false: the text is too broken to say anything about keys
};

// Never throws for bad text: everything wrong with it is in `faults`.
RawDeck read_toml(std::string_view text);

// "section.key=value" as an entry; on a fault `faults` grows and the entry has no key.
Entry read_override(const std::string& text, std::vector<Fault>& faults);

// One TOML value, for example of the schema's own defaults.
TomlValue read_value(std::string_view text);

// `text` in printable ASCII for messages, other bytes as \xC3; shortened to about 60 characters.
std::string printable(std::string_view text);

// A TOML string in printable ASCII that reads back as `text`, which must be UTF-8.
std::string toml_string(std::string_view text);

}  // namespace voltapile
