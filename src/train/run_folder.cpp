#include "voltapile/train/run_folder.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "voltapile/base/error.hpp"
#include "voltapile/base/host.hpp"
#include "voltapile/deck/parse.hpp"

namespace voltapile {

namespace {

namespace fs = std::filesystem;

// <name>, or the first <name>.N that is not there yet.
fs::path next_fresh_folder(const Deck& deck) {
  const fs::path base = fs::path(deck.run.dir) / deck.run.name;
  if (!fs::exists(base)) return base;
  fs::path path = newest_run_folder(deck);
  for (int number = 2; fs::exists(path); ++number) {
    path = base;
    path += format(".{}", number);
  }
  return path;
}

// A job that was killed may be over before its ranks are: mpirun does not wait for those that it
// kills, and a rank gives back its memory first. So a held lock is tried for some time.
constexpr std::chrono::seconds kLockPatience(10);
constexpr std::chrono::milliseconds kLockPause(50);

bool lock_soon(int descriptor, const fs::path& file) {
  const auto end = std::chrono::steady_clock::now() + kLockPatience;
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (const int cause = errno; cause != EWOULDBLOCK && cause != EINTR) {
      close(descriptor);
      throw Error(ExitCode::bad_input,
                  format("{}: this file system does not lock ({}), so nothing would keep two jobs "
                         "apart; choose another folder with run.dir",
                         file.string(), std::strerror(cause)));
    }
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kLockPause);
  }
  return true;
}

int take_lock(const fs::path& path) {
  const fs::path file = path / "run.lock";
  const int descriptor = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    throw Error(ExitCode::bad_input, format("{}: {}; choose another folder with run.dir",
                                            file.string(), std::strerror(errno)));
  }
  if (!lock_soon(descriptor, file)) {
    std::array<char, 256> holder{};
    const ssize_t got = read(descriptor, holder.data(), holder.size() - 1);
    close(descriptor);
    throw Error(
        ExitCode::failure,
        format(
            "{} is in use by another job ({}); wait for it, or start apart with --fresh or another "
            "run.name",
            path.string(), got > 0 ? std::string(holder.data()) : "unknown"));
  }
  const std::string text = format("host {} process {}", host_name(), getpid());
  if (ftruncate(descriptor, 0) != 0 || write(descriptor, text.data(), text.size()) < 0) {
    close(descriptor);
    throw Error(ExitCode::failure, format("{}: {}", file.string(), std::strerror(errno)));
  }
  return descriptor;
}

// What differs from the deck that the run was last continued with; Error where that may not.
std::vector<std::string> accepted_changes(const fs::path& file, const Deck& deck) {
  const Deck stored = load_deck(file.string());
  std::string refused;
  std::vector<std::string> accepted;
  for (const DeckDifference& change : compare_decks(stored, deck)) {
    if (change.may_change_on_resume)
      accepted.push_back(format("{}: {} before, {} now", change.key, change.before, change.after));
    else refused += format("\n  {}: {} there, {} now", change.key, change.before, change.after);
  }
  if (refused.empty()) return accepted;
  throw Error(ExitCode::bad_input, format("{} was started with another deck. These keys cannot "
                                          "change on resume:{}\nPut them back, or start "
                                          "over with --fresh, or choose another run.name.",
                                          file.parent_path().string(), refused));
}

}  // namespace

fs::path newest_run_folder(const Deck& deck) {
  const fs::path base = fs::path(deck.run.dir) / deck.run.name;
  fs::path found = base;
  for (int number = 2;; ++number) {
    fs::path path = base;
    path += format(".{}", number);
    if (!fs::exists(path)) return found;
    found = path;
  }
}

RunFolder::RunFolder(const Deck& deck, bool fresh) {
  path_ = fresh ? next_fresh_folder(deck) : newest_run_folder(deck);
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) {
    throw Error(ExitCode::bad_input,
                format("run folder {}: {}; choose another one with run.dir and run.name",
                       path_.string(), error.message()));
  }
  lock_ = take_lock(path_);
  try {
    const bool has_results =
        fs::exists(path_ / "metrics.jsonl") || fs::exists(path_ / "checkpoints");
    if (has_results && fs::exists(path_ / "deck.toml"))
      changes_ = accepted_changes(path_ / "deck.toml", deck);
  } catch (...) {
    close(lock_);
    throw;
  }
}

RunFolder::~RunFolder() {
  if (lock_ >= 0) close(lock_);
}

void RunFolder::write_deck_file(const Deck& deck) const {
  const fs::path file = path_ / "deck.toml", aside = path_ / "deck.toml.new";
  std::ofstream out(aside);
  out << write_deck(deck);
  out.close();
  if (!out) throw Error(ExitCode::failure, format("{}: cannot be written", aside.string()));
  fs::rename(aside, file);
}

}  // namespace voltapile
