#include <charconv>

#include "voltapile/submit/submit.hpp"

namespace voltapile {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// The number that the text begins with: sinfo writes "8+" where nodes of a line differ.
std::optional<int64_t> leading_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

// "gpu:v100:4(S:0-1),gpu:2,shard:8" has 6 GPUs.
int count_gpus(std::string_view gres) {
  int64_t gpus = 0;
  for (std::string_view part : split(gres, ',')) {
    part = part.substr(0, part.find('('));
    const auto fields = split(part, ':');
    if (fields.front() == "gpu" && fields.size() > 1)
      gpus += leading_number(fields.back()).value_or(0);
  }
  return static_cast<int>(gpus);
}

// "infinite", "30", "30:00", "4:00:00", "1-00:00:00"
std::optional<double> limit_seconds(std::string_view text) {
  int64_t days = 0;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto number = leading_number(text.substr(0, dash));
    if (!number) return std::nullopt;
    days = *number;
    text.remove_prefix(dash + 1);
  }
  int64_t seconds = 0;
  const auto fields = split(text, ':');
  for (std::string_view field : fields) {
    const auto number = leading_number(field);
    if (!number) return std::nullopt;
    seconds = 60 * seconds + *number;
  }
  if (fields.size() == 1) seconds *= 60;
  return static_cast<double>(seconds + days * 24 * 3600);
}

}  // namespace

std::vector<NodeKind> parse_sinfo(std::string_view text) {
  std::vector<NodeKind> kinds;
  for (std::string_view line : split(text, '\n')) {
    const auto fields = split(line, '|');
    if (fields.size() != 6 || fields[0].empty()) continue;
    const auto nodes = leading_number(fields[1]), cpus = leading_number(fields[2]),
               megabytes = leading_number(fields[3]);
    if (!nodes || !cpus || !megabytes) continue;
    NodeKind kind;
    kind.partition = fields[0];
    if (kind.partition.ends_with('*')) {
      kind.is_default = true;
      kind.partition.pop_back();
    }
    kind.nodes = static_cast<int>(*nodes);
    kind.cpus = static_cast<int>(*cpus);
    kind.memory_bytes = *megabytes << 20;
    kind.gpus = count_gpus(fields[4]);
    kind.limit_seconds = limit_seconds(fields[5]);
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

}  // namespace voltapile
