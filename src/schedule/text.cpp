#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "voltapile/base/error.hpp"
#include "voltapile/schedule/schedule.hpp"

#include "global_order.hpp"
#include "shape.hpp"

namespace voltapile {

namespace {

struct Letter {
  char letter;
  Op op;
};
constexpr Letter kLetters[] = {
    {'F', Op::forward}, {'B', Op::backward}, {'I', Op::backward_input}, {'W', Op::backward_weight}};

std::optional<Op> op_of(char letter) {
  for (const Letter& entry : kLetters)
    if (entry.letter == letter) return entry.op;
  return std::nullopt;
}

std::string text_of(const Instruction& i) {
  for (const Letter& entry : kLetters)
    if (entry.op == i.op) return format("{}{}.{}", entry.letter, i.chunk, i.micro);
  VP_CHECK(false, "{} has no letter: only compute instructions are printed", show(i));
}

struct Position {
  int line, column;  // from 1
};

class Parser {
 public:
  Parser(std::string_view text, const ScheduleShape& shape, const std::string& path)
      : text_(text), shape_(shape), path_(path) {}

  std::vector<Program> parse() {
    int line = 0;
    for (size_t begin = 0; begin < text_.size(); ++line) {
      const size_t end = std::min(text_.find('\n', begin), text_.size());
      parse_line(text_.substr(begin, end - begin), line + 1);
      begin = end + 1;
    }
    const int ranks = shape_.chunks.ranks, lines = static_cast<int>(programs_.size());
    if (lines < ranks)
      fault({std::max(line, 1), 1},
            format("{} lines of instructions for {} pipeline ranks: one line each", lines, ranks));
    for (int rank = 0; rank < std::min(lines, ranks); ++rank) check_complete(rank);
    throw_faults();
    try {
      global_order(programs_, shape_, false);
    } catch (const Error& error) { throw Error(error.code(), path_ + ": " + error.what()); }
    return std::move(programs_);
  }

 private:
  static constexpr size_t kMostFaults = 20;

  void parse_line(std::string_view line, int number) {
    line = line.substr(0, line.find('#'));
    constexpr std::string_view kBlank = " \t\r";
    size_t begin = line.find_first_not_of(kBlank);
    if (begin == line.npos) return;
    if (static_cast<int>(programs_.size()) == shape_.chunks.ranks)
      return fault({number, static_cast<int>(begin) + 1},
                   format("a line too many: there are {} pipeline ranks", shape_.chunks.ranks));
    programs_.emplace_back();
    lines_.push_back(number);
    while (begin != line.npos) {
      const size_t end = std::min(line.find_first_of(kBlank, begin), line.size());
      parse_word(line.substr(begin, end - begin), {number, static_cast<int>(begin) + 1});
      begin = line.find_first_not_of(kBlank, end);
    }
  }

  void parse_word(std::string_view word, Position at) {
    const std::optional<Op> op = op_of(word.front());
    if (!op)
      return fault(at, format("\"{}\": an instruction begins with F (forward), B (backward), I "
                              "(backward of the input) or W (backward of the weights)",
                              word));
    const char* end = word.data() + word.size();
    int chunk = 0, micro = 0;
    auto parsed = std::from_chars(word.data() + 1, end, chunk);
    const bool dotted = parsed.ec == std::errc{} && parsed.ptr != end && *parsed.ptr == '.';
    if (dotted) parsed = std::from_chars(parsed.ptr + 1, end, micro);
    if (!dotted || parsed.ec != std::errc{} || parsed.ptr != end)
      return fault(at, format("\"{}\" is not of the form {}CHUNK.MICRO, as in {}0.1", word,
                              word.front(), word.front()));
    if (chunk < 0 || chunk >= shape_.chunks.chunks())
      return fault(
          at, format("\"{}\": there is no chunk {} (0 to {})", word, chunk, shape_.chunks.last()));
    if (micro < 0 || micro >= shape_.micros)
      return fault(at, format("\"{}\": there is no micro-batch {} (0 to {})", word, micro,
                              shape_.micros - 1));
    const int rank = static_cast<int>(programs_.size()) - 1;
    if (rank_of(shape_.chunks, chunk) != rank)
      return fault(at, format("\"{}\": chunk {} lives on pipeline rank {}, and this is the line of "
                              "rank {}",
                              word, chunk, rank_of(shape_.chunks, chunk), rank));
    add(*op, chunk, micro, word, at);
  }

  void add(Op op, int chunk, int micro, std::string_view word, Position at) {
    const std::string wrong = fault_of(op, chunk, micro);
    if (!wrong.empty()) {
      fault(at, format("\"{}\" {}", word, wrong));
      named_.insert({chunk, micro});
      return;
    }
    seen_.insert({{chunk, micro, op}, at});
    programs_.back().push_back(compute_instruction(op, chunk, micro));
  }

  // What is wrong with the instruction after those before it; empty when nothing is.
  std::string fault_of(Op op, int chunk, int micro) const {
    if (const auto first = seen_.find({chunk, micro, op}); first != seen_.end())
      return format("stands at {}:{} already", first->second.line, first->second.column);
    const bool whole = has(chunk, micro, Op::backward);
    const bool split =
        has(chunk, micro, Op::backward_input) || has(chunk, micro, Op::backward_weight);
    if (op == Op::backward ? split : op != Op::forward && whole)
      return "goes back twice: B stands for I and W together";
    if (op != Op::forward && !has(chunk, micro, Op::forward))
      return format("comes before F{}.{}", chunk, micro);
    if (op == Op::backward_weight && !has(chunk, micro, Op::backward_input))
      return format("comes before I{}.{}", chunk, micro);
    return "";
  }

  bool has(int chunk, int micro, Op op) const { return seen_.contains({chunk, micro, op}); }

  void check_complete(int rank) {
    const Position at{lines_[static_cast<size_t>(rank)], 1};
    const auto need = [&](int chunk, int micro, Op op) {
      if (!has(chunk, micro, op))
        fault(at, format("rank {} lacks {}", rank, text_of(compute_instruction(op, chunk, micro))));
    };
    for (int chunk = 0; chunk < shape_.chunks.chunks(); ++chunk) {
      if (rank_of(shape_.chunks, chunk) != rank) continue;
      for (int micro = 0; micro < shape_.micros; ++micro) {
        if (named_.contains({chunk, micro})) continue;
        need(chunk, micro, Op::forward);
        if (has(chunk, micro, Op::backward_input) || has(chunk, micro, Op::backward_weight)) {
          need(chunk, micro, Op::backward_input);
          need(chunk, micro, Op::backward_weight);
        } else {
          need(chunk, micro, Op::backward);
        }
      }
    }
  }

  void fault(Position at, const std::string& what) {
    faults_.push_back({at, format("{}:{}:{}: {}", path_, at.line, at.column, what)});
  }

  void throw_faults() {
    if (faults_.empty()) return;
    std::stable_sort(faults_.begin(), faults_.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first.line, a.first.column) < std::tie(b.first.line, b.first.column);
    });
    std::vector<std::string> lines;
    for (const auto& [at, text] : faults_)
      if (lines.size() < kMostFaults) lines.push_back(text);
    if (faults_.size() > kMostFaults)
      lines.push_back(format("{}: and {} more", path_, faults_.size() - kMostFaults));
    throw Error(ExitCode::bad_input, join(lines, "\n"));
  }

  std::string_view text_;
  const ScheduleShape& shape_;
  const std::string& path_;
  std::vector<Program> programs_;
  std::vector<int> lines_;  // line of each program
  std::map<std::tuple<int, int, Op>, Position> seen_;
  std::set<std::pair<int, int>>
      named_;  // chunks and micros in whose instructions a fault was found
  std::vector<std::pair<Position, std::string>> faults_;
};

}  // namespace

std::string print_schedule(const std::vector<Program>& programs) {
  std::string text;
  for (const Program& program : programs) {
    std::vector<std::string> words;
    for (const Instruction& i : program) words.push_back(text_of(i));
    text += join(words, " ") + "\n";
  }
  return text;
}

std::vector<Program> parse_schedule(std::string_view text, const ScheduleShape& shape,
                                    const std::string& path) {
  check_shape(shape);
  return Parser(text, shape, path).parse();
}

}  // namespace voltapile
