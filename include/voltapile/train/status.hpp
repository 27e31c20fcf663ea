// How far a run is, by what its folder holds. Judges what a job's exit code cannot.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

#include "voltapile/deck/deck.hpp"

namespace voltapile {

// Steps of the whole run: run.steps, or run.epochs of `samples` pictures, rounded up.
int64_t total_steps(const Deck& deck, int64_t samples);

// Whether `saved`, the step of the latest checkpoint (0: none), is the last of `total`; where the
// deck asks for no checkpoint at the end, the metrics in `run_dir` tell.
bool is_finished(const Deck& deck, const std::filesystem::path& run_dir, int64_t saved,
                 int64_t total);

struct RunStatus {
  std::filesystem::path folder;                     // the one that `train` would continue
  std::optional<std::filesystem::path> checkpoint;  // latest
  int64_t saved = 0;                                // its step; 0 without one
  int64_t recorded = 0;                             // last step of metrics.jsonl
  int64_t total = 0;
  bool finished = false;
};

// Reads only, so it may look at a run that is at work. Opens the training data of a deck with
// run.epochs, to count it. Error(bad_data) for a checkpoint or data that cannot be read.
RunStatus status_of(const Deck& deck);

}  // namespace voltapile
