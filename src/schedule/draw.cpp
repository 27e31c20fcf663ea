#include <algorithm>
#include <cmath>
#include <limits>

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
  int cells = 0;
  double cell_of(double time) const { return (time - begin) / (end - begin) * cells; }
};

// One row: each cell shows what takes the largest part of its time.
class Row {
 public:
  explicit Row(const Scale& scale)
      : scale_(scale),
        cells_(static_cast<size_t>(scale.cells), std::string(kIdle.mark)),
        taken_(cells_.size()) {}

  // Cells of a span: those of which it takes more than half, or more than all others before.
  void add(const Span& span, bool chunks) {
    const double begin = scale_.cell_of(span.begin), end = scale_.cell_of(span.end);
    const std::string_view mark = mark_of(span.instruction.op).mark;
    size_t first = cells_.size(), count = 0;
    for (auto cell = static_cast<size_t>(begin); cell < cells_.size() && double(cell) < end;
         ++cell) {
      const double part = std::min(end, double(cell) + 1) - std::max(begin, double(cell));
      if (part <= taken_[cell] || part < kLeast) continue;
      taken_[cell] = part;
      cells_[cell] = mark;
      first = std::min(first, cell);
      ++count;
    }
    label(span.instruction, first, count, chunks);
  }

  std::string text() const {
    std::string text;
    for (const std::string& cell : cells_) text += cell;
    return text;
  }

 private:
  static constexpr double kLeast = 1. / 3;  // below this a cell stays idle

  // A mark stays behind the number, so that the kind can still be seen.
  void label(const Instruction& i, size_t first, size_t count, bool chunks) {
    if (i.micro < 0) return;
    std::string number = format("{}.{}", i.chunk, i.micro);
    if (!chunks || number.size() >= count) number = format("{}", i.micro);
    if (number.size() >= count) return;
    for (char digit : number) cells_[first++] = std::string(1, digit);
  }

  const Scale& scale_;
  std::vector<std::string> cells_;
  std::vector<double> taken_;
};

std::string legend(const std::vector<Mark>& marks, bool chunks, size_t columns) {
  std::vector<std::pair<std::string, size_t>> entries;  // text and its width
  for (const Mark& mark : marks)
    entries.push_back({format("{} {}", mark.mark, mark.name), mark.name.size() + 2});
  const std::string number = chunks ? "0 micro, 0.0 chunk.micro" : "0 micro-batch";
  entries.push_back({number, number.size()});
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

}  // namespace

std::string draw(const Timeline& timeline, int ranks, int columns) {
  constexpr int kLeastColumns = 24;
  columns = std::max(columns, kLeastColumns);
  Scale scale;
  bool chunks = false;
  int first_chunk = -1;
  std::vector<Mark> marks;
  std::vector<const Span*> spans;
  for (const Span& span : timeline.spans) {
    if (span.instruction.lane != Lane::compute) continue;
    VP_CHECK(span.rank >= 0 && span.rank < ranks, "a span of rank {} in {} rows", span.rank, ranks);
    spans.push_back(&span);
    scale.begin = std::min(scale.begin, span.begin);
    scale.end = std::max(scale.end, span.end);
    const Mark mark = mark_of(span.instruction.op);
    if (std::none_of(marks.begin(), marks.end(),
                     [&](const Mark& other) { return other.name == mark.name; }))
      marks.push_back(mark);
  }
  if (spans.empty() || !(scale.end > scale.begin)) return "";
  // Chunks are worth a number only where a rank has several.
  for (const Span* span : spans)
    if (span->rank == spans.front()->rank && span->instruction.chunk >= 0) {
      if (first_chunk < 0) first_chunk = span->instruction.chunk;
      chunks |= span->instruction.chunk != first_chunk;
    }
  marks.push_back(kIdle);
  std::stable_sort(spans.begin(), spans.end(),
                   [](const Span* a, const Span* b) { return a->begin < b->begin; });

  const size_t digits = format("{}", ranks - 1).size();
  scale.cells = columns - static_cast<int>(digits) - 7;  // "rank N |" and "|"
  std::vector<Row> rows(static_cast<size_t>(ranks), Row(scale));
  for (const Span* span : spans) rows[static_cast<size_t>(span->rank)].add(*span, chunks);
  std::string text;
  for (int rank = 0; rank < ranks; ++rank)
    text += format("rank {:>{}} │{}\n", rank, digits, rows[static_cast<size_t>(rank)].text());
  return text + legend(marks, chunks, static_cast<size_t>(columns));
}

}  // namespace voltapile
