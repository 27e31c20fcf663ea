#include <chrono>
#include <optional>
#include <ostream>
#include <system_error>
#include <thread>

#include "voltapile/report/report.hpp"

namespace voltapile {
namespace {

constexpr std::chrono::milliseconds kLook(250);
constexpr int kLooksBetweenPages = 8;

bool is_done(const Run& run) {
  const auto& steps = run.plan.deck.run.steps;
  return steps && !run.metrics.train.empty() && run.metrics.train.back().step >= *steps;
}

}  // namespace

void follow(const std::filesystem::path& folder, std::ostream& out, bool terminal,
            const std::function<bool()>& stop) {
  const std::filesystem::path lines = folder / "metrics.jsonl";
  std::optional<std::uintmax_t> shown;  // bytes of the lines when the page was made
  for (int looks = kLooksBetweenPages;; ++looks) {
    std::error_code none;
    const std::uintmax_t size = std::filesystem::file_size(lines, none);
    if (shown != (none ? 0 : size) && looks >= kLooksBetweenPages) {
      const Run run = read_run(folder);
      // On a terminal each page replaces the one before.
      out << (terminal ? "\x1b[H\x1b[2J" : "") << describe(run) << std::flush;
      shown = none ? 0 : size;
      looks = 0;
      if (is_done(run)) return;
    }
    if (stop()) return;
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace voltapile
