#include "voltapile/watch/fingerprint.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>

#include <elf.h>
#include <link.h>

#include "voltapile/base/host.hpp"
#include "voltapile/base/log.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/base/version.hpp"

namespace voltapile {

namespace {

constexpr double kClockTolerance = 2;     // seconds
constexpr double kMemoryTolerance = 0.2;  // of what is free

// The note that the linker leaves in the executable, which the kernel maps with it.
std::string build_id() {
  std::string found = "unknown";
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* result) {
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& part = object->dlpi_phdr[i];
          if (part.p_type != PT_NOTE) continue;
          const auto* at = reinterpret_cast<const unsigned char*>(object->dlpi_addr + part.p_vaddr);
          const auto* end = at + part.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) < end) {
            const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
            const auto* name = at + sizeof(*note);
            const auto* value = name + (note->n_namesz + 3) / 4 * 4;
            if (note->n_type == NT_GNU_BUILD_ID && value + note->n_descsz <= end) {
              std::string text;
              for (unsigned k = 0; k < note->n_descsz; ++k) text += format("{:02x}", value[k]);
              *static_cast<std::string*>(result) = text.substr(0, 16);
              return 1;
            }
            at = value + (note->n_descsz + 3) / 4 * 4;
          }
        }
        return 1;  // the first object is the program itself
      },
      &found);
  return found;
}

// "value" of the first line "name : value" of a file of the kernel's.
std::string line_of(const char* file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name, 0) != 0) continue;
    const size_t colon = line.find(':');
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (colon != std::string::npos && begin != std::string::npos) return line.substr(begin);
  }
  return "unknown";
}

std::string time_text(double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&whole, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return format("{}.{} UTC", text.data(), static_cast<int>((seconds - std::floor(seconds)) * 10));
}

std::string write(const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact& fact : facts) {
    std::string value = fact.value;
    std::replace(value.begin(), value.end(), '\n', ' ');
    text += format("{}\t{}\t{}\t{}\t{}\n", fact.weight == Weight::fatal ? 1 : 0, fact.name,
                   fact.number ? format("{:.17g}", *fact.number) : "-", fact.tolerance, value);
  }
  return text;
}

std::vector<Fact> read(const std::string& text) {
  std::vector<Fact> facts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string weight, number, tolerance;
    Fact fact;
    std::getline(fields, weight, '\t');
    std::getline(fields, fact.name, '\t');
    std::getline(fields, number, '\t');
    std::getline(fields, tolerance, '\t');
    std::getline(fields, fact.value, '\n');
    fact.weight = weight == "1" ? Weight::fatal : Weight::warning;
    if (number != "-") fact.number = std::stod(number);
    fact.tolerance = std::stod(tolerance);
    facts.push_back(std::move(fact));
  }
  return facts;
}

const Fact* find(const std::vector<Fact>& facts, const std::string& name) {
  const auto at =
      std::find_if(facts.begin(), facts.end(), [&](const Fact& fact) { return fact.name == name; });
  return at == facts.end() ? nullptr : &*at;
}

using Groups = std::vector<std::pair<std::string, std::vector<int>>>;  // value, ranks

// Ranks with the same value, in the order of their first.
Groups group(const std::vector<const Fact*>& of) {
  std::vector<const Fact*> numbers;
  for (const Fact* fact : of)
    if (fact != nullptr && fact->number) numbers.push_back(fact);
  const auto middle = numbers.begin() + static_cast<long>(numbers.size() / 2);
  if (!numbers.empty())
    std::nth_element(numbers.begin(), middle, numbers.end(),
                     [](const Fact* a, const Fact* b) { return *a->number < *b->number; });
  const Fact* median = numbers.empty() ? nullptr : *middle;
  Groups groups;
  for (size_t rank = 0; rank < of.size(); ++rank) {
    const Fact* fact = of[rank];
    std::string value = fact == nullptr ? "none" : fact->value;
    if (fact != nullptr && fact->number && median != nullptr &&
        std::abs(*fact->number - *median->number) <= median->tolerance)
      value = median->value;
    auto at = std::find_if(groups.begin(), groups.end(),
                           [&](const auto& each) { return each.first == value; });
    if (at == groups.end()) at = groups.insert(at, {value, {}});
    at->second.push_back(static_cast<int>(rank));
  }
  return groups;
}

}  // namespace

std::string digest(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3;
  }
  return format("{:016x}", hash);
}

std::vector<Fact> build_facts() {
  return {{.name = "version", .value = kVersion, .weight = Weight::fatal},
          {.name = "build", .value = build_id()},
          {.name = "compiler", .value = __VERSION__}};
}

std::vector<Fact> machine_facts() {
  using namespace std::chrono;
  const double now = duration<double>(system_clock::now().time_since_epoch()).count();
  const auto free_bytes = static_cast<double>(available_memory());
  return {{.name = "time", .value = time_text(now), .number = now, .tolerance = kClockTolerance},
          {.name = "CPU", .value = line_of("/proc/cpuinfo", "model name")},
          {.name = "free memory",
           .value = show_bytes(free_bytes),
           .number = free_bytes,
           .tolerance = kMemoryTolerance * free_bytes}};
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    const bool run = end - i > 2;
    if (i != 0) text += ", ";
    text += run ? format("{}-{}", ranks[i], ranks[end - 1]) : format("{}", ranks[i]);
    i = run ? end : i + 1;
  }
  return text;
}

Differences compare(const std::vector<std::vector<Fact>>& ranks) {
  std::vector<std::string> names;
  std::map<std::string, Weight> weights;
  for (const auto& facts : ranks) {
    for (const Fact& fact : facts) {
      if (weights.try_emplace(fact.name, fact.weight).second) names.push_back(fact.name);
    }
  }
  Differences found;
  for (const std::string& name : names) {
    std::vector<const Fact*> of;
    for (const auto& facts : ranks) of.push_back(find(facts, name));
    const Groups groups = group(of);
    if (groups.size() == 1) continue;
    found.fatal = found.fatal || weights.at(name) == Weight::fatal;
    if (found.table.empty()) found.table = format("\n  {:<14}{:<16}{}", "what", "ranks", "value");
    bool first = true;
    for (const auto& [value, members] : groups) {
      found.table += format("\n  {:<14}{:<16}{}", first ? name : "", list_ranks(members), value);
      first = false;
    }
  }
  return found;
}

void compare_ranks(Communicator& world, const std::vector<Fact>& mine) {
  std::vector<std::vector<Fact>> ranks;
  for (const std::string& text : world.gather_text(write(mine))) ranks.push_back(read(text));
  const Differences found = compare(ranks);
  if (found.fatal)
    throw SharedError(ExitCode::bad_input,
                      "the ranks of this job do not belong together:" + found.table);
  if (!found.table.empty() && world.rank() == 0)
    log::warn("the ranks of this job differ:" + found.table);
}

}  // namespace voltapile
