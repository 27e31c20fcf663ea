// The run folder: runs/<name>/{deck.toml,log.txt,metrics.jsonl,metrics.h5,run.lock,checkpoints/}.
// One writer at a time.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "voltapile/deck/deck.hpp"

namespace voltapile {

class RunFolder {
 public:
  // Opens deck.run.dir/deck.run.name (or, fresh, the next free <name>.N), creating it if needed,
  // and locks it. Error(failure) when another job holds the lock, naming its host and process;
  // Error(bad_input) when the path cannot be written or when the stored deck differs in keys that
  // may not change on resume (with the differences).
  RunFolder(const Deck& deck, bool fresh);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  void write_deck_file(const Deck& deck) const;
  // One line for each key that differs from the deck of the run's last session.
  const std::vector<std::string>& changes() const { return changes_; }

 private:
  std::filesystem::path path_;
  int lock_ = -1;
  std::vector<std::string> changes_;
};

// The folder that `train` would continue: <dir>/<name>, or the newest <name>.N that --fresh made.
std::filesystem::path newest_run_folder(const Deck& deck);

}  // namespace voltapile
