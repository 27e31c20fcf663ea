#include "suggest.hpp"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "voltapile/base/format.hpp"
#include "voltapile/deck/parse.hpp"

#include "schema.hpp"

namespace voltapile {

namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (c == '-') c = '_';
  }
  return result;
}

// Optimal string alignment: insert, delete, replace, or swap neighbours, each at cost 1.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

bool has_word(const std::string& words, const std::string& word) {
  std::istringstream stream(words);
  for (std::string each; stream >> each;)
    if (each == word) return true;
  return false;
}

std::string did_you_mean(const std::string& name) {
  return name.empty() ? "" : format("; did you mean {}?", name);
}

}  // namespace

std::string nearest(std::string_view name, const std::vector<std::string>& known) {
  if (name.empty() || name.size() > 64) return "";
  const std::string wanted = lower(name);
  std::string best;
  size_t best_distance = std::max<size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t d = distance(wanted, lower(candidate));
    if (d < best_distance && d < candidate.size()) best = candidate, best_distance = d;
  }
  if (!best.empty() || wanted.size() < 3) return best;
  // "warmup" for "warmup_steps", "checkpointing" for "checkpoint".
  for (const std::string& candidate : known) {
    const std::string other = lower(candidate);
    if (other.size() >= 3 && (other.starts_with(wanted) || wanted.starts_with(other)))
      return candidate;
  }
  return "";
}

namespace {
std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const SectionInfo& info : schema().sections) names.push_back(info.name);
  return names;
}
}  // namespace

std::string meant_section(const std::string& section) { return nearest(section, section_names()); }

std::string suggest_section(const std::string& section) {
  const std::string best = meant_section(section);
  return best.empty() ? format("; the sections are {}", join(section_names(), ", "))
                      : format("; did you mean [{}]?", best);
}

std::vector<std::string> meant_keys(const std::string& section, const std::string& key) {
  const std::string wanted = lower(key);
  std::vector<std::string> in_section, same_key, same_meaning, everywhere;
  for (const Row& row : schema().rows) {
    const bool here = row.section == section;
    everywhere.push_back(row.key);
    if (here) in_section.push_back(row.key);
    if (here && has_word(row.notes.also, wanted)) return {row.name()};
    if (row.key == wanted) same_key.push_back(row.name());
    if (has_word(row.notes.also, wanted)) same_meaning.push_back(row.name());
  }
  if (!same_key.empty()) return same_key;
  if (const std::string best = nearest(key, in_section); !best.empty())
    return {section + "." + best};
  if (!same_meaning.empty()) return same_meaning;
  const std::string best = nearest(key, everywhere);
  for (const Row& row : schema().rows)
    if (row.key == best) same_key.push_back(row.name());
  return same_key;
}

std::string suggest_key(const std::string& section, const std::string& key) {
  const auto meant = meant_keys(section, key);
  if (!meant.empty()) return did_you_mean(join(meant, " or "));
  std::vector<std::string> keys;
  for (const Row& row : schema().rows)
    if (row.section == section) keys.push_back(row.key);
  return keys.empty() ? "" : format("; [{}] has {}", section, join(keys, ", "));
}

std::string suggest_choice(const std::string& word, const Row& row) {
  std::istringstream others(row.notes.words);
  for (std::string other; others >> other;) {
    const size_t equals = other.find('=');
    if (other.substr(0, equals) == lower(word))
      return did_you_mean(toml_string(other.substr(equals + 1)));
  }
  const std::string best = nearest(word, row.choices);
  return best.empty() ? "" : did_you_mean(toml_string(best));
}

}  // namespace voltapile
