#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "voltapile/base/error.hpp"
#include "voltapile/schedule/schedule.hpp"

#include "shape.hpp"

namespace voltapile {

namespace {

struct Mark {
  std::string_view mark, name;
};
constexpr Mark kIdle{"·", "idle"};

Mark mark_of(Op op) {
  switch (op) {
    case Op::forward: return {"░", "forward"};
    case Op::recompute: return {"▒", "recompute"};
    case Op::backward: return {"▓", "backward"};
    case Op::backward_input: return {"▓", "backward (input)"};
    case Op::backward_weight: return {"▚", "backward (weights)"};
    case Op::update: return {"=", "update"};
    default: return {"+", "other"};
  }
}

struct Scale {
  double begin = std::numeric_limits<double>::infinity(), end = -begin;
  double shortest = begin;  // instruction
  int cells = 0;
  double cell_of(double time) const { return (time - begin) / (end - begin) * cells; }

  // Equal instructions look equal where the shortest one can have some whole cells.
  void fit(int most_cells) {
    const double units = (end - begin) / shortest;
    const double per_unit = std::floor(most_cells / units);
    cells = per_unit >= 2 ? static_cast<int>(std::lround(units * per_unit)) : most_cells;
    cells = std::min(cells, most_cells);
  }
};

// One row: each cell shows what takes the largest part of its time.
class Row {
 public:
  explicit Row(const Scale& scale) : scale_(scale), cells_(static_cast<size_t>(scale.cells)) {}

  void add(const Span& span) {
    const double begin = scale_.cell_of(span.begin), end = scale_.cell_of(span.end);
    for (auto cell = static_cast<size_t>(begin); cell < cells_.size() && double(cell) < end;
         ++cell) {
      const double part = std::min(end, double(cell) + 1) - std::max(begin, double(cell));
      cells_[cell].taken[static_cast<size_t>(span.instruction.op)] += part;
    }
  }

  // Writes `text` into the cells that [begin, end) has to itself, where it fits with a mark left
  // behind it, so that the kind can still be seen. Returns whether it did.
  bool label(double begin, double end, const std::string& text) {
    constexpr double kRounding = 1e-6;
    auto cell = static_cast<size_t>(std::ceil(scale_.cell_of(begin) - kRounding));
    const auto stop = static_cast<size_t>(std::floor(scale_.cell_of(end) + kRounding));
    if (cell + text.size() >= stop) return false;
    for (char digit : text) cells_[cell++].digit = digit;
    return true;
  }

  std::string text() const {
    std::string text;
    for (const Cell& cell : cells_) {
      const auto most = std::max_element(cell.taken.begin(), cell.taken.end());
      const double busy = std::accumulate(cell.taken.begin(), cell.taken.end(), 0.);
      if (cell.digit != 0) text += cell.digit;
      else
        text += busy < 0.5 ? kIdle.mark : mark_of(static_cast<Op>(most - cell.taken.begin())).mark;
    }
    return text;
  }

 private:
  struct Cell {
    std::array<double, kOpCount> taken{};  // part of the cell's time, by op
    char digit = 0;
  };

  const Scale& scale_;
  std::vector<Cell> cells_;
};

class Picture {
 public:
  Picture(const Timeline& timeline, int ranks) : spans_(static_cast<size_t>(ranks)) {
    for (const Span& span : timeline.spans) {
      if (span.instruction.lane != Lane::compute || !(span.end > span.begin)) continue;
      VP_CHECK(span.rank >= 0 && span.rank < ranks, "a span of rank {} in {} rows", span.rank,
               ranks);
      spans_[static_cast<size_t>(span.rank)].push_back(&span);
      scale_.begin = std::min(scale_.begin, span.begin);
      scale_.end = std::max(scale_.end, span.end);
      scale_.shortest = std::min(scale_.shortest, span.end - span.begin);
      add_mark(mark_of(span.instruction.op));
    }
    for (auto& row : spans_) {
      std::sort(row.begin(), row.end(),
                [](const Span* a, const Span* b) { return a->begin < b->begin; });
      for (const Span* span : row)
        several_chunks_ |= span->instruction.micro >= 0 &&
                           span->instruction.chunk != row.front()->instruction.chunk;
    }
    add_mark(kIdle);
  }

  bool empty() const { return marks_.size() == 1; }

  std::string text(size_t columns) {
    const size_t digits = format("{}", spans_.size() - 1).size();
    scale_.fit(static_cast<int>(columns - digits - 7));  // "rank N │"
    std::vector<Row> rows(spans_.size(), Row(scale_));
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      for (const Span* span : spans_[rank]) rows[rank].add(*span);
      label_micros(rows[rank], spans_[rank]);
    }
    for (size_t rank = 0;
         rank < rows.size() && several_chunks_ && !micro_labels_ && !chunk_micro_labels_; ++rank)
      label_chunks(rows[rank], spans_[rank]);
    std::string text;
    for (size_t rank = 0; rank < rows.size(); ++rank)
      text += format("rank {:>{}} │{}\n", rank, digits, rows[rank].text());
    return text + legend(columns);
  }

 private:
  void add_mark(Mark mark) {
    if (std::none_of(marks_.begin(), marks_.end(),
                     [&](const Mark& other) { return other.name == mark.name; }))
      marks_.push_back(mark);
  }

  void label_micros(Row& row, const std::vector<const Span*>& spans) {
    for (const Span* span : spans) {
      const Instruction& i = span->instruction;
      if (i.micro < 0) continue;
      if (several_chunks_ && row.label(span->begin, span->end, format("{}.{}", i.chunk, i.micro)))
        chunk_micro_labels_ = true;
      else micro_labels_ |= row.label(span->begin, span->end, format("{}", i.micro));
    }
  }

  // Where micro-batches are too short for a number: runs of one chunk and operation.
  void label_chunks(Row& row, const std::vector<const Span*>& spans) {
    for (size_t first = 0, last = 0; first < spans.size(); first = last) {
      const Instruction& i = spans[first]->instruction;
      while (last < spans.size() && spans[last]->instruction.chunk == i.chunk &&
             spans[last]->instruction.op == i.op)
        ++last;
      chunk_labels_ |= row.label(spans[first]->begin, spans[last - 1]->end, format("{}", i.chunk));
    }
  }

  std::string legend(size_t columns) const {
    std::vector<std::pair<std::string, size_t>> entries;  // text and its width
    for (const Mark& mark : marks_)
      entries.push_back({format("{} {}", mark.mark, mark.name), mark.name.size() + 2});
    const auto explain = [&](const std::string& text) { entries.push_back({text, text.size()}); };
    if (micro_labels_) explain("0 micro-batch");
    if (chunk_micro_labels_) explain("0.0 chunk.micro");
    if (chunk_labels_) explain("0 chunk");
    std::string text;
    size_t width = 0;
    for (const auto& [entry, wide] : entries) {
      const bool fits = width > 0 && width + 2 + wide <= columns;
      if (width > 0) text += fits ? "  " : "\n";
      text += entry;
      width = fits ? width + 2 + wide : wide;
    }
    return text + "\n";
  }

  Scale scale_;
  std::vector<std::vector<const Span*>> spans_;  // by rank, in time
  std::vector<Mark> marks_;                      // in use, for the legend
  bool several_chunks_ = false;                  // on some rank
  bool micro_labels_ = false, chunk_micro_labels_ = false, chunk_labels_ = false;
};

}  // namespace

std::string draw(const Timeline& timeline, int ranks, int columns) {
  constexpr int kLeastColumns = 24;
  Picture picture(timeline, ranks);
  return picture.empty() ? "" : picture.text(static_cast<size_t>(std::max(columns, kLeastColumns)));
}

}  // namespace voltapile
