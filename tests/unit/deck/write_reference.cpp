// Writes input_decks/README.md: `ninja deck-reference`.
#include <fstream>
#include <iostream>

#include "voltapile/deck/parse.hpp"

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: write_reference FILE\n";
    return 2;
  }
  std::ofstream file(arguments[1], std::ios::binary);
  file << voltapile::deck_reference();
  file.close();
  if (!file) {
    std::cerr << arguments[1] << ": cannot be written\n";
    return 1;
  }
  return 0;
}
