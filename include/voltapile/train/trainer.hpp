// A whole run: from a deck to a finished run folder. Collective over `world`; every rank returns or
// throws the same.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "voltapile/base/clock.hpp"
#include "voltapile/base/error.hpp"
#include "voltapile/comm/communicator.hpp"
#include "voltapile/deck/deck.hpp"
#include "voltapile/plan/plan.hpp"
#include "voltapile/trace/summary.hpp"
#include "voltapile/train/metrics.hpp"
#include "voltapile/watch/fingerprint.hpp"
#include "voltapile/watch/watch.hpp"

namespace voltapile {

// Called on every rank; may throw on some of them.
using DeckLoader = std::function<Deck()>;

struct TrainOptions {
  bool fresh = false;                               // start over in <name>.2, .3, ...
  std::function<void(const Plan&)> check;           // throws where the plan must not run
  double began = now_seconds();                     // when run.walltime starts to count
  bool quiet = false;                               // no progress (tests)
  std::function<void(const TrainRecord&)> on_step;  // rank 0, in order
  // Every rank, from a thread of its own: before each piece that a save writes of state on the host
  // or on nvme. Tests slow the disk by it.
  std::function<void()> before_write;
  WatchOptions watch;
  std::vector<Fact> facts;  // of this rank, to be compared with the others'
};

struct TrainSummary {
  ExitCode code = ExitCode::done;
  std::string run_dir;
  int64_t steps = 0;    // done in all, over every session of the run
  double seconds = 0;   // of this call's training, since its last rewind
  int64_t rewinds = 0;  // over every session of the run
  double loss = 0;
  std::optional<EvalRecord> evaluation;
  bool was_finished = false;  // nothing was left to do
  SummaryTimers timers;       // of this rank
  Device::Recordings recordings;
};

TrainSummary train(const DeckLoader& load, std::unique_ptr<Communicator> world,
                   const TrainOptions& options = {});

// Evaluates a checkpoint on the test part, on any mesh. Of the options, only `check` counts; the
// checkpoint is asked for after it.
using CheckpointNamer = std::function<std::filesystem::path()>;
EvalRecord evaluate(const DeckLoader& load, std::unique_ptr<Communicator> world,
                    const TrainOptions& options, const CheckpointNamer& checkpoint_of);

// Runs f on every rank; if any rank threw, every rank throws the first such rank's error as a
// SharedError, so nobody waits for ever. Its rank and host are named where rank 0 met no error.
// Collective.
void agree(Communicator& world, const std::function<void()>& f);

}  // namespace voltapile
