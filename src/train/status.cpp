#include "voltapile/train/status.hpp"

#include <algorithm>
#include <cmath>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/comm/communicator.hpp"
#include "voltapile/data/data.hpp"
#include "voltapile/train/metrics.hpp"
#include "voltapile/train/run_folder.hpp"

namespace voltapile {

int64_t total_steps(const Deck& deck, int64_t samples) {
  if (deck.run.steps) return *deck.run.steps;
  const double exact =
      *deck.run.epochs * static_cast<double>(samples) / static_cast<double>(deck.batch.global);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(exact - 1e-9)));
}

bool is_finished(const Deck& deck, const std::filesystem::path& run_dir, int64_t saved,
                 int64_t total) {
  if (saved >= total) return true;
  return !deck.checkpoint.at_end && last_recorded_step(run_dir) >= total;
}

RunStatus status_of(const Deck& deck) {
  RunStatus status;
  status.folder = newest_run_folder(deck);
  const std::filesystem::path checkpoints = status.folder / "checkpoints";
  try {
    status.checkpoint = latest_checkpoint(checkpoints);
    if (status.checkpoint) status.saved = read_run_state(*status.checkpoint).step;
  } catch (const Error&) {
    if (!deck.checkpoint.fallback) throw;
    const auto chosen = choose_checkpoint(checkpoints, *make_solo(), OnDamage::fall_back);
    if (chosen) status.checkpoint = chosen->folder;
    status.saved = chosen ? chosen->state.step : 0;
  }
  status.recorded = last_recorded_step(status.folder);
  status.total = total_steps(deck, deck.run.steps ? 0 : open_source(deck, Part::train)->size());
  status.finished = is_finished(deck, status.folder, status.saved, status.total);
  return status;
}

}  // namespace voltapile
