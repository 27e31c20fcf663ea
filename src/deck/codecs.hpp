// How one kind of value is read from TOML, written back and described. Each codec has
//   read(value, out): false if the value is not allowed;
//   write(value): TOML that reads back as the same value;
//   allowed(): what a message and the reference say, "an integer from 1 to 9";
//   choices(), where there are words to suggest from.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "voltapile/base/format.hpp"

#include "value.hpp"

namespace voltapile {

constexpr int64_t kAnyInteger = std::numeric_limits<int64_t>::max();
constexpr double kAnyNumber = std::numeric_limits<double>::infinity();

struct Integer {
  int64_t low, high = kAnyInteger;
  std::string allowed() const;
  bool read_integer(const TomlValue& value, int64_t& out) const;
  template <class T>
  bool read(const TomlValue& value, T& out) const {
    int64_t integer = 0;
    if (!read_integer(value, integer)) return false;
    out = static_cast<T>(integer);
    return true;
  }
  template <class T>
  std::string write(T value) const {
    return format("{}", value);
  }
};

enum class Edge { closed, open };

struct Number {
  double low, high = kAnyNumber;
  Edge low_edge = Edge::closed, high_edge = Edge::closed;
  std::string allowed() const;
  bool read(const TomlValue& value, double& out) const;  // an integer is a number too
  std::string write(double value) const;                 // shortest text of the same double
};

struct Text {
  std::string what = "text";
  std::string allowed() const { return what + " in quotes"; }
  bool read(const TomlValue& value, std::string& out) const;
  std::string write(const std::string& value) const { return toml_string(value); }
};

struct Texts {  // a list, or one alone
  std::string what;
  std::string allowed() const { return format("{0} in quotes, or a list of them", what); }
  bool read(const TomlValue& value, std::vector<std::string>& out) const;
  std::string write(const std::vector<std::string>& value) const;
};

struct FolderName {  // of a run: one folder below run.dir
  std::string allowed() const;
  bool read(const TomlValue& value, std::string& out) const;
  std::string write(const std::string& value) const { return toml_string(value); }
};

struct StepWindow {  // "100:105", or "" for none
  std::string allowed() const;
  bool read(const TomlValue& value, std::string& out) const;
  std::string write(const std::string& value) const { return toml_string(value); }
};

struct Flag {
  std::string allowed() const { return "true or false"; }
  bool read(const TomlValue& value, bool& out) const;
  std::string write(bool value) const { return value ? "true" : "false"; }
};

struct Bytes {
  int64_t low = 1;
  std::string allowed() const;
  bool read(const TomlValue& value, int64_t& out) const;
  std::string write(int64_t value) const;
};

struct Seconds {
  std::string allowed() const;
  bool read(const TomlValue& value, double& out) const;
  std::string write(double value) const;
};

struct OneOrTwo {  // an integer, or [height, width]
  int64_t low, high;
  std::string allowed() const;
  bool read(const TomlValue& value, std::array<int64_t, 2>& out) const;
  std::string write(const std::array<int64_t, 2>& value) const;
};

struct Numbers {         // a list; of exactly two for an array
  std::string how_many;  // "2 numbers"
  Number element;
  std::string allowed() const;
  bool read_list(const TomlValue& value, std::vector<double>& out) const;
  bool read(const TomlValue& value, std::vector<double>& out) const;
  bool read(const TomlValue& value, std::array<double, 2>& out) const;
  std::string write(const std::vector<double>& value) const;
  std::string write(const std::array<double, 2>& value) const;
};

std::string list_words(const std::vector<std::string>& words);  // "a", "b" or "c", each quoted

template <class T>
struct Choice {
  std::vector<std::pair<std::string, T>> options;
  std::vector<std::string> choices() const {
    std::vector<std::string> words;
    for (const auto& option : options) words.push_back(option.first);
    return words;
  }
  std::string allowed() const { return list_words(choices()); }
  bool read(const TomlValue& value, T& out) const {
    const auto* word = std::get_if<std::string>(&value.data);
    if (word == nullptr) return false;
    for (const auto& option : options)
      if (option.first == *word) return out = option.second, true;
    return false;
  }
  std::string write(const T& value) const {
    for (const auto& option : options)
      if (option.second == value) return toml_string(option.first);
    return toml_string("");
  }
};

inline Choice<std::string> words(const std::vector<std::string>& names) {
  Choice<std::string> choice;
  for (const std::string& name : names) choice.options.emplace_back(name, name);
  return choice;
}

// A word that stands for "none given": an empty optional, or 0 for a plain number.
template <class Inner>
struct WordOr {
  std::string word;
  Inner inner;
  std::vector<std::string> choices() const { return {word}; }
  std::string allowed() const { return format("\"{}\" or {}", word, inner.allowed()); }
  bool is_word(const TomlValue& value) const {
    const auto* text = std::get_if<std::string>(&value.data);
    return text != nullptr && *text == word;
  }
  template <class T>
  bool read(const TomlValue& value, T& out) const {
    if (is_word(value)) return out = T{}, true;
    return inner.read(value, out);
  }
  template <class T>
  bool read(const TomlValue& value, std::optional<T>& out) const {
    if (is_word(value)) return out.reset(), true;
    T read_value{};
    if (!inner.read(value, read_value)) return false;
    out = read_value;
    return true;
  }
  template <class T>
  std::string write(const T& value) const {
    return value == T{} ? toml_string(word) : inner.write(value);
  }
  template <class T>
  std::string write(const std::optional<T>& value) const {
    return value ? inner.write(*value) : toml_string(word);
  }
};
template <class Inner>
WordOr(std::string, Inner) -> WordOr<Inner>;

// true, false or "auto".
template <class T>
struct Switch {
  T on, off, automatic;
  std::vector<std::string> choices() const { return {"auto"}; }
  std::string allowed() const { return "true, false or \"auto\""; }
  bool read(const TomlValue& value, T& out) const {
    if (const auto* flag = std::get_if<bool>(&value.data)) return out = *flag ? on : off, true;
    const auto* word = std::get_if<std::string>(&value.data);
    if (word == nullptr || *word != "auto") return false;
    out = automatic;
    return true;
  }
  std::string write(T value) const {
    return value == on ? "true" : value == off ? "false" : "\"auto\"";
  }
};

}  // namespace voltapile
