#include "voltapile/train/import_run.hpp"

#include <memory>

#include "voltapile/base/error.hpp"
#include "voltapile/train/run_folder.hpp"

namespace voltapile {

ImportedRun import_run(const std::filesystem::path& file, const Deck& deck, bool fresh) {
  std::unique_ptr<RunFolder> folder;
  const Imported imported = import_weights(file, deck, [&] {
    folder = std::make_unique<RunFolder>(deck, fresh);
    for (const char* result : {"checkpoints", "metrics.jsonl"}) {
      if (!std::filesystem::exists(folder->path() / result)) continue;
      throw Error(ExitCode::bad_input,
                  format("{} is a run already (it has {}): take --fresh, or another run.name",
                         folder->path().string(), result));
    }
    // Before the checkpoint: a run with a checkpoint has its deck.
    folder->write_deck_file(deck);
    return folder->checkpoints();
  });
  return {imported, folder->path()};
}

}  // namespace voltapile
