#include <algorithm>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/report/report.hpp"

#include "advice.hpp"

namespace voltapile {

Run read_run(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  Run run{.folder = folder.lexically_normal()};
  if (!run.folder.has_filename()) run.folder = run.folder.parent_path();
  if (!fs::exists(folder / "deck.toml")) {
    throw Error(ExitCode::bad_input,
                format("{} is not a run folder: it has no deck.toml; name one, runs/NAME",
                       folder.string()));
  }
  run.name = run.folder.filename().string();
  run.metrics = read_metrics(folder);
  Deck deck = load_deck((folder / "deck.toml").string());
  if (fs::exists(folder / "trace.h5")) {
    run.trace = read_trace(folder / "trace.h5");
    deck = parse_deck(run.trace->deck, (folder / "trace.h5").string());
  }
  run.plan = make_plan(deck);
  if (run.trace && run.trace->end_step() > 0) {
    run.window = run.trace->last_window();
    run.analysis = analyse(*run.window, run.plan);
  }
  run.checkpoint = latest_checkpoint(folder / "checkpoints");
  if (run.checkpoint) run.checkpoint_step = read_run_state(*run.checkpoint).step;
  run.advice = advise(facts_of(run));
  return run;
}

}  // namespace voltapile
