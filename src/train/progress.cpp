#include "voltapile/train/progress.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <unistd.h>

#include "voltapile/base/format.hpp"
#include "voltapile/base/log.hpp"
#include "voltapile/base/units.hpp"

namespace voltapile {

bool output_is_terminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return true;
  std::error_code error;
  const auto target = std::filesystem::read_symlink(format("/proc/{}/fd/1", getppid()), error);
  return !error &&
         (target.string().starts_with("/dev/pts/") || target.string().starts_with("/dev/tty"));
}

Progress::Progress(int64_t first_step, int64_t total_steps, int64_t every, bool terminal)
    : first_(first_step), total_(total_steps), every_(every), terminal_(terminal) {}

void Progress::show(const TrainRecord& record, const std::string& note) {
  seconds_ += record.seconds;
  ++steps_;
  // On a terminal the bar moves a few times a second, and the lines go to the log only.
  const bool last = record.step == total_;
  const bool line_is_due = record.step % every_ == 0 || last;
  const bool bar_is_due = terminal_ && (seconds_ - last_drawn_ >= 0.2 || last);
  if (!line_is_due && !bar_is_due) return;
  const double left =
      seconds_ / static_cast<double>(steps_) * static_cast<double>(total_ - record.step);
  const std::string numbers = format(
      "step {:>{}}/{}  loss {:.4f}  lr {:.2e}  {:>6} samples/s  {} left{}{}", record.step,
      std::to_string(total_).size(), total_, record.loss, record.learning_rate,
      show_grouped(static_cast<int64_t>(record.samples_per_second + 0.5)), show_seconds(left),
      record.skipped ? "  (skipped: not finite)" : "", note.empty() ? "" : "  (" + note + ")");
  if (line_is_due) terminal_ ? log::to_file(numbers) : log::info(numbers);
  if (!bar_is_due) return;
  last_drawn_ = seconds_;
  constexpr int kWidth = 24;
  const int filled = static_cast<int>(kWidth * record.step / total_);
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "░";
  std::fputs(format("\r{} {}\x1b[K", bar, numbers).c_str(), stdout);
  std::fflush(stdout);
  drawn_ = true;
}

void Progress::finish() {
  if (drawn_) std::fputs("\n", stdout);
  std::fflush(stdout);
  drawn_ = false;
}

}  // namespace voltapile
