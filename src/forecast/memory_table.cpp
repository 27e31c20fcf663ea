#include "memory_table.hpp"

#include <algorithm>

#include "voltapile/base/text_table.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/forecast/fit.hpp"

namespace voltapile {
namespace {

// Pipeline ranks that hold the same.
struct Kind {
  std::vector<int> ranks;
  std::vector<MemoryLine> lines;
};

bool same_line(const MemoryLine& a, const MemoryLine& b) {
  return a.name == b.name && a.bytes == b.bytes && a.home == b.home;
}

std::vector<Kind> kinds_of(const Plan& plan) {
  std::vector<Kind> kinds;
  for (int rank = 0; rank < plan.mesh.pp; ++rank) {
    std::vector<MemoryLine> lines = plan.memory(rank);
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) {
      return std::equal(kind.lines.begin(), kind.lines.end(), lines.begin(), lines.end(),
                        same_line);
    });
    if (same != kinds.end()) same->ranks.push_back(rank);
    else kinds.push_back({{rank}, std::move(lines)});
  }
  return kinds;
}

// "pp0", "pp1-2", "pp1, 3, 5".
std::string name_of_kind(const Kind& kind) {
  std::string name = "pp";
  for (size_t i = 0; i < kind.ranks.size();) {
    size_t end = i + 1;
    while (end < kind.ranks.size() && kind.ranks[end] == kind.ranks[end - 1] + 1) ++end;
    if (i > 0) name += ",";
    name += std::to_string(kind.ranks[i]);
    if (end - i > 1) name += "-" + std::to_string(kind.ranks[end - 1]);
    i = end;
  }
  return name;
}

size_t total(const Kind& kind, Home home) {
  size_t bytes = 0;
  for (const MemoryLine& line : kind.lines) bytes += line.home == home ? line.bytes : 0;
  return bytes;
}

// The name without ", 4 buffers", whose count differs from rank to rank.
std::string base_name(const std::string& name) {
  const size_t comma = name.find(", ");
  return comma != std::string::npos && name.ends_with(" buffers") ? name.substr(0, comma) : name;
}
std::string count_of(const std::string& name) {
  const std::string base = base_name(name);
  if (base.size() == name.size()) return "";
  return name.substr(base.size() + 2,
                     name.size() - base.size() - 2 - std::string_view(" buffers").size());
}

std::string amount(size_t bytes) { return show_bytes(static_cast<double>(bytes)); }

class Table {
 public:
  Table(const Plan& plan, const Hardware& hardware, std::vector<Kind> kinds)
      : plan_(plan),
        hardware_(hardware),
        kinds_(std::move(kinds)),
        table_(alignment(kinds_.size())) {}

  std::string text(std::string_view indent) {
    std::vector<std::string> head{""};
    for (const Kind& kind : kinds_) head.push_back(name_of_kind(kind));
    table_.add(std::move(head));
    section(Home::device, "on the device");
    if (hardware_.overhead_bytes > 0) {
      std::vector<std::string> held{"  driver, libraries, kernels"}, all{"  in use, by the driver"};
      for (const Kind& kind : kinds_) {
        held.push_back(amount(in_use(kind) - total(kind, Home::device)));
        all.push_back(amount(in_use(kind)));
      }
      table_.add(std::move(held));
      table_.add(std::move(all));
    }
    if (const auto limit = plan_.deck.memory.device_limit_bytes) {
      std::vector<std::string> cells{"  memory.device_limit = " +
                                     amount(static_cast<size_t>(*limit))};
      for (const Kind& kind : kinds_) {
        const auto used = static_cast<int64_t>(in_use(kind));
        cells.push_back(used <= *limit ? amount(static_cast<size_t>(*limit - used)) + " left"
                                       : amount(static_cast<size_t>(used - *limit)) + " over");
      }
      table_.add(std::move(cells));
    }
    section(Home::host, "on the host");
    section(Home::nvme, "on nvme");
    return table_.text(indent);
  }

 private:
  size_t in_use(const Kind& kind) const {
    return bytes_in_use(plan_, hardware_, kind.ranks.front());
  }

  static std::vector<Align> alignment(size_t kinds) {
    std::vector<Align> columns{Align::left};
    columns.resize(kinds + 1, Align::right);
    return columns;
  }

  void section(Home home, std::string_view title) {
    // Names in the order of the first kind that has them.
    std::vector<std::string> names;
    for (const Kind& kind : kinds_)
      for (const MemoryLine& line : kind.lines)
        if (line.home == home &&
            std::find(names.begin(), names.end(), base_name(line.name)) == names.end())
          names.push_back(base_name(line.name));
    if (names.empty()) return;
    table_.add_line(std::string(title));
    for (const std::string& name : names) {
      std::vector<std::string> cells{"  " + name};
      for (const Kind& kind : kinds_) cells.push_back(cell(kind, home, name));
      table_.add(std::move(cells));
    }
    std::vector<std::string> cells{"  total"};
    for (const Kind& kind : kinds_) cells.push_back(amount(total(kind, home)));
    table_.add(std::move(cells));
  }

  static std::string cell(const Kind& kind, Home home, const std::string& name) {
    for (const MemoryLine& line : kind.lines)
      if (line.home == home && base_name(line.name) == name) {
        const std::string count = count_of(line.name);
        return (count.empty() ? "" : count + " x ") +
               (count.empty() ? amount(line.bytes)
                              : amount(line.bytes / static_cast<size_t>(std::stoi(count))));
      }
    return "-";
  }

  const Plan& plan_;
  const Hardware& hardware_;
  std::vector<Kind> kinds_;
  TextTable table_;
};

}  // namespace

std::string memory_table(const Plan& plan, const Hardware& hardware, size_t columns,
                         std::string_view indent) {
  std::vector<Kind> kinds = kinds_of(plan);
  // As many kinds as fit: the first ones, the heaviest and the last.
  constexpr size_t kNames = 34, kColumn = 14;
  const size_t most = std::max<size_t>(3, (columns - kNames) / kColumn);
  size_t left_out = 0;
  if (kinds.size() > most) {
    const auto heaviest =
        std::max_element(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) {
          return total(a, Home::device) < total(b, Home::device);
        });
    std::vector<Kind> shown;
    const auto at = static_cast<size_t>(heaviest - kinds.begin());
    const size_t firsts = at < most - 1 || at + 1 == kinds.size() ? most - 1 : most - 2;
    for (size_t k = 0; k < kinds.size(); ++k)
      if (k < firsts || k == at || k + 1 == kinds.size()) shown.push_back(kinds[k]);
    left_out = kinds.size() - shown.size();
    kinds = std::move(shown);
  }
  std::string text = Table(plan, hardware, std::move(kinds)).text(indent);
  if (left_out > 0)
    text += format("{}{} more kinds of rank take no more than the heaviest of these\n", indent,
                   left_out);
  size_t host = 0;
  for (int rank = 0; rank < plan.mesh.pp; ++rank)
    host += plan.bytes_at(Home::host, rank) * static_cast<size_t>(plan.mesh.dp * plan.mesh.tp);
  const auto limit = plan.deck.memory.host_limit_bytes;
  text += format(
      "{}host memory of all {} rank{}: {}{}\n", indent, plan.mesh.size(),
      plan.mesh.size() == 1 ? "" : "s", amount(host),
      limit ? format("; memory.host_limit = {} a machine", amount(static_cast<size_t>(*limit)))
            : std::string());
  return text;
}

}  // namespace voltapile
