// Log lines: to the terminal and, once a run folder exists, to its log.txt. Backed by spdlog
// (src/base/log.cpp). Rank 0 speaks; other ranks are silent below `warn`.
#pragma once
#include <filesystem>
#include <string_view>

#include "voltapile/base/format.hpp"

namespace voltapile::log {

void set_rank(int rank);                           // silences info on ranks above 0
void add_file(const std::filesystem::path& path);  // appends; rank 0 only
void info(std::string_view line);
void to_file(std::string_view line);  // where the terminal shows the same in another form
void warn(std::string_view line);
void error(std::string_view line);

}  // namespace voltapile::log
