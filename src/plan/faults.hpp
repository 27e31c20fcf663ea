// Collects every fault of a deck, so that the user meets them all at once.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "voltapile/deck/deck.hpp"

namespace voltapile {

class Faults {
 public:
  explicit Faults(const Deck& deck) : deck_(deck) {}
  // `key` = "section.key", `value` as the deck has it, `text` what is wrong and what would be
  // right.
  void add(const std::string& key, std::string_view value, std::string_view text);
  // A message that names its place itself.
  void add(std::string text) { lines_.push_back(std::move(text)); }
  bool empty() const { return lines_.empty(); }
  void throw_if_any() const;  // Error(bad_input), one line a fault

 private:
  const Deck& deck_;
  std::vector<std::string> lines_;
};

// What can be judged from the deck's numbers alone.
void check_numbers(const Deck& deck, int world_size, Faults& faults);

}  // namespace voltapile
