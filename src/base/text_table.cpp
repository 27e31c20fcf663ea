#include "voltapile/base/text_table.hpp"

#include <algorithm>

namespace voltapile {

size_t display_width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string TextTable::text(std::string_view indent) const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (const Row& row : rows_)
    for (size_t c = 0; c < row.cells.size(); ++c)
      widths[c] = std::max(widths[c], display_width(row.cells[c]));
  std::string text;
  for (const Row& row : rows_) {
    std::string line(indent);
    line += row.line;
    for (size_t c = 0; c < row.cells.size(); ++c) {
      const std::string padding(widths[c] - display_width(row.cells[c]), ' ');
      if (c > 0) line += "  ";
      line += columns_[c] == Align::right ? padding + row.cells[c] : row.cells[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string wrapped(std::string_view text, size_t columns, std::string_view indent) {
  std::string result;
  size_t width = 0;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    const size_t wide = display_width(word);
    if (width > 0 && width + 1 + wide > columns) {
      result += '\n';
      result += indent;
      width = 0;
    } else if (width > 0) {
      result += ' ';
      ++width;
    }
    result += word;
    width += wide;
  }
  return result;
}

}  // namespace voltapile
