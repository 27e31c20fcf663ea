#include "voltapile/deck/parse.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "voltapile/base/error.hpp"
#include "voltapile/base/format.hpp"

#include "checks.hpp"
#include "schema.hpp"
#include "suggest.hpp"

namespace voltapile {

namespace {

namespace fs = std::filesystem;

class Reader {
 public:
  Reader(RawDeck raw, const std::string& path) : raw_(std::move(raw)) {
    deck_.path = path;
    mistaken_.insert(raw_.broken.begin(), raw_.broken.end());
  }

  void apply(const std::vector<std::string>& overrides) {
    for (const std::string& text : overrides) {
      Entry entry = read_override(text, raw_.faults);
      if (entry.key.empty()) continue;
      // The length of a run is one thing with two names.
      const std::string twin = entry.name() == "run.steps"    ? "run.epochs"
                               : entry.name() == "run.epochs" ? "run.steps"
                                                              : "";
      std::erase_if(raw_.entries, [&](const Entry& old) {
        return old.name() == entry.name() || old.name() == twin;
      });
      raw_.entries.push_back(std::move(entry));
    }
  }

  Deck read() {
    if (raw_.readable) {
      check_headers();
      for (const Entry& entry : raw_.entries) read_entry(entry);
      fill_in();
      resolve_files();
      check_rules(deck_, [this](const auto& key, const auto& others, const auto& allowed) {
        report(key, others, allowed);
      });
    }
    if (!raw_.faults.empty()) throw Error(ExitCode::bad_input, message());
    keep_places();
    return std::move(deck_);
  }

 private:
  void fault(TextPlace place, std::string text) { raw_.faults.push_back({place, std::move(text)}); }

  void check_headers() {
    for (const Header& header : raw_.headers)
      if (!schema().has_section(header.section))
        fault(header.place, format("[{}]: no such section{}", printable(header.section),
                                   suggest_section(header.section)));
  }

  void read_entry(const Entry& entry) {
    const Row* row = schema().find(entry.section, entry.key);
    if (row == nullptr) return unknown(entry);
    given_[entry.name()] = &entry;
    if (row->read(entry.value, deck_)) return;
    // On the command line quotes are optional, also around what TOML takes for a number or a date.
    if (!entry.bare.empty() && row->read({entry.bare}, deck_)) return;
    faulty_.insert(entry.name());
    const auto* word = std::get_if<std::string>(&entry.value.data);
    fault(entry.value_place,
          format("{} = {}: must be {}{}", entry.name(), entry.value.shown(), row->allowed,
                 word != nullptr ? suggest_choice(*word, *row) : ""));
  }

  void unknown(const Entry& entry) {
    if (entry.section.empty() && schema().has_section(entry.key)) {
      fault(entry.key_place, format("{} = {}: a section; write [{}] and its keys below it",
                                    entry.key, entry.value.shown(), entry.key));
      return;
    }
    if (!entry.section.empty() && !schema().has_section(entry.section)) {
      mistaken_.insert(format("{}.{}", meant_section(entry.section), entry.key));
      // In a file the header's own fault says it once for all its keys.
      if (entry.key_place.line == 0)
        fault(entry.key_place, format("{} = {}: no such section{}", printable(entry.name()),
                                      entry.value.shown(), suggest_section(entry.section)));
      return;
    }
    // A slip in a required key's name is one fault, not two; likewise above.
    const auto meant = meant_keys(entry.section, entry.key);
    if (meant.size() == 1) mistaken_.insert(meant.front());
    const char* what = entry.section.empty() ? "stands in no section" : "no such key";
    fault(entry.key_place, format("{} = {}: {}{}", printable(entry.name()), entry.value.shown(),
                                  what, suggest_key(entry.section, entry.key)));
  }

  void fill_in() {
    const Given given = [this](std::string_view name) {
      return given_.contains(std::string(name));
    };
    using Kind = Fallback::Kind;
    for (const Row& row : schema().rows) {
      if (given(row.name())) continue;
      const Fallback& fallback = row.notes.fallback;
      if (fallback.kind == Kind::literal) {
        const bool good = row.read(row.literal, deck_);
        VP_CHECK(good, "the default of {} is out of its own range", row.name());
      } else if (fallback.kind == Kind::required) {
        faulty_.insert(row.name());
        if (mistaken_.contains(row.name())) continue;
        fault(section_place(row.section), format("{}: required; {}", row.name(), row.allowed));
      }
    }
    for (const Row& row : schema().rows)
      if (!given(row.name()) && row.notes.fallback.kind == Kind::derived)
        row.notes.fallback.derive(deck_, given);
  }

  // Absolute, so that the resolved deck means the same from any folder.
  void resolve_files() {
    const fs::path folder = fs::absolute(fs::path(".") / deck_.path).parent_path();
    for (const Row& row : schema().rows) {
      if (!row.file) continue;
      std::string& name = *row.file(deck_);
      if (!name.empty()) name = (folder / name).lexically_normal().string();
    }
  }

  void report(const std::string& key, const std::vector<std::string>& others,
              const std::string& allowed) {
    const auto faulty = [this](const std::string& name) {
      return faulty_.contains(name) || mistaken_.contains(name);
    };
    if (faulty(key) || std::any_of(others.begin(), others.end(), faulty)) return;
    // Where it was given; a value that follows from another key is found at that one.
    std::vector<std::string> names{key};
    names.insert(names.end(), others.begin(), others.end());
    for (const std::string& name : names) {
      const auto entry = given_.find(name);
      if (entry == given_.end()) continue;
      const std::string value = name == key ? format(" = {}", entry->second->value.shown()) : "";
      return fault(entry->second->value_place, format("{}{}: {}", key, value, allowed));
    }
    fault(section_place(key.substr(0, key.find('.'))), format("{}: {}", key, allowed));
  }

  TextPlace section_place(const std::string& section) const {
    for (const Header& header : raw_.headers)
      if (header.section == section) return header.place;
    return {1, 1};
  }

  std::string shown(TextPlace place) const {
    return place.line == 0 ? "--set" : format("{}:{}:{}", deck_.path, place.line, place.column);
  }

  void keep_places() {
    for (const Header& header : raw_.headers)
      deck_.places.of.try_emplace(header.section, shown(header.place));
    for (const auto& [name, entry] : given_) deck_.places.of[name] = shown(entry->value_place);
  }

  std::string message() {
    std::stable_sort(raw_.faults.begin(), raw_.faults.end(), [](const Fault& a, const Fault& b) {
      const bool a_set = a.place.line == 0, b_set = b.place.line == 0;
      return std::tie(a_set, a.place.line, a.place.column) <
             std::tie(b_set, b.place.line, b.place.column);
    });
    std::vector<std::string> lines;
    for (const Fault& each : raw_.faults)
      lines.push_back(format("{}: {}", shown(each.place), each.text));
    return join(lines, "\n");
  }

  RawDeck raw_;
  Deck deck_;
  std::map<std::string, const Entry*> given_;
  std::set<std::string> faulty_;    // keys whose own value is refused
  std::set<std::string> mistaken_;  // keys given in a way that could not be understood
};

std::string near_file(const fs::path& path) {
  std::error_code ignored;
  const fs::path folder = path.parent_path();
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, ignored))
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  const std::string best = nearest(path.stem().string(), names);
  return best.empty() ? "" : format("; did you mean {}?", (folder / (best + ".toml")).string());
}

}  // namespace

std::string Deck::place(const std::string& key) const {
  for (const std::string& name : {key, key.substr(0, key.find('.'))})
    if (const auto found = places.of.find(name); found != places.of.end()) return found->second;
  return format("{}:1:1", path);
}

Deck parse_deck(std::string_view text, const std::string& path,
                const std::vector<std::string>& overrides) {
  Reader reader(read_toml(text), path);
  reader.apply(overrides);
  return reader.read();
}

Deck load_deck(const std::string& path, const std::vector<std::string>& overrides) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ExitCode::bad_input, format("{}: {}", path, why));
  };
  std::error_code error;
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) refuse("no such file" + near_file(path));
  if (fs::is_directory(status)) refuse("a folder; give the deck's file, such as quickstart.toml");
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse("cannot be opened; check its permissions");
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) refuse("cannot be read");
  return parse_deck(text.str(), path, overrides);
}

}  // namespace voltapile
