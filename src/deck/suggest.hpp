// "; did you mean ...?" for messages, or "" where nothing is near.
#pragma once
#include <string>
#include <vector>

namespace voltapile {

struct Row;

std::string meant_section(const std::string& section);  // its name, or ""
std::string suggest_section(const std::string& section);
// Names ("section.key") that a key unknown to `section` may stand for; section "" for a key above
// the first header.
std::vector<std::string> meant_keys(const std::string& section, const std::string& key);
std::string suggest_key(const std::string& section, const std::string& key);
std::string suggest_choice(const std::string& word, const Row& row);

}  // namespace voltapile
