// Options of the command line that CLI11 has no readable words for.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "voltapile/base/format.hpp"

namespace voltapile {

// One word of a list; another one is refused with the list.
template <class Value>
void add_choice(CLI::App& command, const std::string& name, Value& value,
                const std::vector<std::pair<std::string, Value>>& choices,
                const std::string& help) {
  command.add_option_function<std::string>(
      name,
      [name, &value, choices](const std::string& word) {
        std::vector<std::string> words;
        for (const auto& [text, meaning] : choices) {
          words.push_back(text);
          if (text != word) continue;
          value = meaning;
          return;
        }
        throw CLI::ValidationError(name, format("{}: must be one of {}", word, join(words, ", ")));
      },
      help);
}

}  // namespace voltapile
