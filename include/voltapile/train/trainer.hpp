// A whole run: from a deck to a finished run folder. Collective over `world`; every rank returns or
// throws the same.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "voltapile/base/error.hpp"
#include "voltapile/comm/communicator.hpp"
#include "voltapile/deck/deck.hpp"
#include "voltapile/trace/summary.hpp"
#include "voltapile/train/metrics.hpp"

namespace voltapile {

struct TrainOptions {
  bool fresh = false;                               // start over in <name>.2, .3, ...
  bool quiet = false;                               // no progress (tests)
  std::function<void(const TrainRecord&)> on_step;  // rank 0, in order
};

struct TrainSummary {
  ExitCode code = ExitCode::done;
  std::string run_dir;
  int64_t steps = 0;   // done in all, over every session of the run
  double seconds = 0;  // of this call's training
  double loss = 0;
  std::optional<EvalRecord> evaluation;
  bool was_finished = false;  // nothing was left to do
  SummaryTimers timers;       // of this rank
};

TrainSummary train(const Deck& deck, std::unique_ptr<Communicator> world,
                   const TrainOptions& options = {});

// Evaluates a checkpoint (default: the run's latest) on the test part, on any mesh.
EvalRecord evaluate(const Deck& deck, std::unique_ptr<Communicator> world,
                    const std::string& checkpoint);

// Runs f on every rank; if any rank threw, every rank throws the first rank's error as a
// SharedError, so nobody waits for ever. Collective.
void agree(Communicator& world, const std::function<void()>& f);

}  // namespace voltapile
