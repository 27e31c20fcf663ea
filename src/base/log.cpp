#include "voltapile/base/log.hpp"

#include <atomic>

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace voltapile::log {

namespace {

std::atomic<int> this_rank{0};

// Plain text to the terminal, time stamps to the file.
spdlog::logger& terminal() {
  static auto logger = [] {
    auto made = std::make_shared<spdlog::logger>("terminal",
                                                 std::make_shared<spdlog::sinks::stdout_sink_mt>());
    made->set_pattern("%v");
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}
spdlog::logger& terminal_errors() {
  static auto logger = [] {
    auto made = std::make_shared<spdlog::logger>("errors",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}
std::shared_ptr<spdlog::logger> file;

void write(spdlog::level::level_enum level, std::string_view line) {
  if (file) file->log(level, "{}", line);
}

}  // namespace

void set_rank(int rank) { this_rank = rank; }

void add_file(const std::filesystem::path& path) {
  if (this_rank != 0) return;
  file = std::make_shared<spdlog::logger>(
      "file", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string()));
  file->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  file->flush_on(spdlog::level::info);
}

void info(std::string_view line) {
  if (this_rank != 0) return;
  terminal().info("{}", line);
  write(spdlog::level::info, line);
}
void to_file(std::string_view line) {
  if (this_rank == 0) write(spdlog::level::info, line);
}
void warn(std::string_view line) {
  terminal_errors().warn("warning: {}", line);
  write(spdlog::level::warn, line);
}
void error(std::string_view line) {
  terminal_errors().error("{}", line);
  write(spdlog::level::err, line);
}

}  // namespace voltapile::log
