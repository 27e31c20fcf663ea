// Text to Deck and back.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "voltapile/deck/deck.hpp"

namespace voltapile {

// Parses TOML text. `path` is for messages and for relative file names; each override is
// "section.key=value" (value in TOML, or bare text for strings). Throws Error(bad_input) whose
// message lists *all* faults, one a line, as `file:line:column: section.key = value: what is
// allowed (did you mean ...?)`.
Deck parse_deck(std::string_view text, const std::string& path,
                const std::vector<std::string>& overrides = {});
Deck load_deck(const std::string& path, const std::vector<std::string>& overrides = {});

// The resolved deck as TOML: every key, parsing to the same Deck again.
std::string write_deck(const Deck& deck);

// input_decks/README.md, generated from the schema table.
std::string deck_reference();

// For messages: the keys ("section.key") in which two decks differ, each with both values.
struct DeckDifference {
  std::string key, before, after;
  bool may_change_on_resume;
};
std::vector<DeckDifference> compare_decks(const Deck& before, const Deck& after);

// `name` or "" — the closest of `known` by edit distance, if close enough to suggest.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

}  // namespace voltapile
