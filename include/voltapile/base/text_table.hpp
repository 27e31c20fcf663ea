// Aligned columns of text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace voltapile {

enum class Align { left, right };

class TextTable {
 public:
  explicit TextTable(std::vector<Align> columns) : columns_(std::move(columns)) {}
  // Missing cells at the end stay empty.
  void add(std::vector<std::string> cells) { rows_.push_back({std::move(cells), ""}); }
  // A line of its own between the rows, which widens no column.
  void add_line(std::string text) { rows_.push_back({{}, std::move(text)}); }
  std::string text(std::string_view indent) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    std::string line;
  };
  std::vector<Align> columns_;
  std::vector<Row> rows_;
};

// Cells that a terminal shows: code points of UTF-8.
size_t display_width(std::string_view text);

// `text` broken at spaces into lines of at most `columns`, to which every line but the first gets
// `indent` besides.
std::string wrapped(std::string_view text, size_t columns, std::string_view indent);

}  // namespace voltapile
