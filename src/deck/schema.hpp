// The schema: one row a key. The parser, the defaults, the ranges, write_deck, compare_decks and
// the reference all read these rows; nothing else knows a key's name.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "voltapile/deck/deck.hpp"

#include "codecs.hpp"
#include "value.hpp"

namespace voltapile {

// Whether a name ("section.key") was given in the deck or on the command line.
using Given = std::function<bool(std::string_view)>;
using Derive = std::function<void(Deck&, const Given&)>;

// What holds when a deck does not give the key.
struct Fallback {
  enum class Kind { required, literal, derived, none } kind = Kind::none;
  std::string text;  // literal: TOML; otherwise words for the reference
  Derive derive;
};
inline Fallback required() { return {Fallback::Kind::required, "required", {}}; }
inline Fallback literal(std::string toml) { return {Fallback::Kind::literal, std::move(toml), {}}; }
inline Fallback not_set(std::string meaning) {
  return {Fallback::Kind::none, std::move(meaning), {}};
}
// Derived values are computed in the table's order, after all that was given has been read.
inline Fallback derived(std::string rule, Derive derive) {
  return {Fallback::Kind::derived, std::move(rule), std::move(derive)};
}

enum class OnResume { fixed, may_change };
enum class KeyNaming { plain, file };  // file: resolved against the deck's folder

// What a row says besides its name and type.
struct Notes {
  Fallback fallback = {};
  std::string unit = {};
  std::string help = {};
  OnResume on_resume = OnResume::fixed;
  std::string also =
      {};  // names that other programs use for it, separated by spaces; for suggestions
  KeyNaming naming = KeyNaming::plain;
  std::string words = {};  // words that others use for a choice: "gpu=cuda fp16=f16"
};

struct Row {
  std::string section, key;
  Notes notes;
  std::string allowed;
  std::vector<std::string> choices;
  TomlValue literal;                                             // of a literal fallback
  std::function<bool(const TomlValue&, Deck&)> read;             // false: not allowed
  std::function<std::optional<std::string>(const Deck&)> write;  // TOML; empty = not set
  std::function<std::string*(Deck&)> file;                       // of a file name, else null
  std::string name() const { return section + "." + key; }
};

struct SectionInfo {
  std::string name, help;
};

struct Schema {
  std::vector<SectionInfo> sections;
  std::vector<Row> rows;  // section by section
  const Row* find(std::string_view section, std::string_view key) const;
  bool has_section(std::string_view name) const;
};
const Schema& schema();

template <class T>
struct OptionalOf {
  static constexpr bool value = false;
};
template <class T>
struct OptionalOf<std::optional<T>> {
  static constexpr bool value = true;
};

// Adds rows of one section, whose keys are the members of one struct of Deck.
template <class Section>
class Rows {
 public:
  Rows(Schema& schema, std::string name, Section Deck::*section, std::string help)
      : schema_(schema), name_(std::move(name)), section_(section) {
    schema_.sections.push_back({name_, std::move(help)});
  }

  template <class T, class Codec>
  void add(std::string key, T Section::*member, Codec codec, Notes notes) {
    Row row;
    row.section = name_;
    row.key = std::move(key);
    row.allowed = codec.allowed();
    if constexpr (requires { codec.choices(); }) row.choices = codec.choices();
    const auto section = section_;
    row.read = [codec, section, member](const TomlValue& value, Deck& deck) {
      return read(codec, value, deck.*section.*member);
    };
    row.write = [codec, section, member](const Deck& deck) {
      return write(codec, deck.*section.*member);
    };
    if constexpr (std::is_same_v<T, std::string>)
      if (notes.naming == KeyNaming::file)
        row.file = [section, member](Deck& deck) { return &(deck.*section.*member); };
    row.notes = std::move(notes);
    schema_.rows.push_back(std::move(row));
  }

 private:
  // A codec that knows optionals has a word for "none"; others leave the key out.
  template <class Codec, class T>
  static bool read(const Codec& codec, const TomlValue& value, T& out) {
    if constexpr (OptionalOf<T>::value && !requires { codec.is_word(value); }) {
      typename T::value_type inner{};
      if (!codec.read(value, inner)) return false;
      out = inner;
      return true;
    } else {
      return codec.read(value, out);
    }
  }
  template <class Codec, class T>
  static std::optional<std::string> write(const Codec& codec, const T& value) {
    if constexpr (OptionalOf<T>::value && !requires { codec.is_word(TomlValue{}); }) {
      if (!value) return std::nullopt;
      return codec.write(*value);
    } else {
      return codec.write(value);
    }
  }

  Schema& schema_;
  std::string name_;
  Section Deck::*section_;
};

// The table, in two files.
void add_run_and_model(Schema& schema);
void add_training(Schema& schema);
void add_data_and_output(Schema& schema);

}  // namespace voltapile
