// Any bytes are a deck or a clean refusal, and what was accepted reads back as it was. Bytes after
// the first NUL are overrides, one a line.
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "voltapile/base/error.hpp"
#include "voltapile/deck/parse.hpp"

namespace {

[[noreturn]] void fail(const std::string& why, const std::string& input) {
  std::cerr << why << "\n--- input ---\n" << input << "\n";
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(data, data + size);
  const size_t end = std::min(input.find('\0'), input.size());
  std::vector<std::string> overrides;
  for (size_t begin = end + 1; begin < input.size();) {
    const size_t stop = std::min(input.find('\n', begin), input.size());
    overrides.push_back(input.substr(begin, stop - begin));
    begin = stop + 1;
  }
  try {
    const auto deck = voltapile::parse_deck(input.substr(0, end), "/decks/fuzz.toml", overrides);
    const std::string text = voltapile::write_deck(deck);
    if (voltapile::parse_deck(text, deck.path) != deck) fail("reads back changed:\n" + text, input);
  } catch (const voltapile::Error& error) {
    const std::string message = error.what();
    if (error.code() != voltapile::ExitCode::bad_input || message.empty()) fail(message, input);
    for (const char c : message)
      if (c != '\n' && (c < ' ' || c > '~')) fail("unprintable message: " + message, input);
  }
  return 0;
}
