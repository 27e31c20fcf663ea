#include "voltapile/train/import_run.hpp"

#include <memory>

#include "voltapile/base/error.hpp"
#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/train/run_folder.hpp"

namespace voltapile {

Imported import_run(const std::filesystem::path& file, const Deck& deck, bool fresh) {
  std::unique_ptr<RunFolder> folder;
  return import_weights(file, deck, [&] {
    folder = std::make_unique<RunFolder>(deck, fresh);
    // Not the checkpoints folder: a save that failed leaves an empty one.
    if (latest_checkpoint(folder->checkpoints()) ||
        std::filesystem::exists(folder->path() / "metrics.jsonl")) {
      throw Error(ExitCode::bad_input,
                  format("{} is a run that has begun: take --fresh, or another run.name",
                         folder->path().string()));
    }
    // Before the checkpoint: a run with a checkpoint has its deck.
    folder->write_deck_file(deck);
    return folder->checkpoints();
  });
}

}  // namespace voltapile
