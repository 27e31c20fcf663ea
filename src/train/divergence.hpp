// Private to train: when a run has diverged, and where it goes then.
#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>

#include "voltapile/base/error.hpp"
#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/train/engine.hpp"
#include "voltapile/train/metrics.hpp"

namespace voltapile {

// Follows a run's steps. All ranks see the same ones, so all come to the same verdict.
class DivergenceJudge {
 public:
  // Sound steps whose mean loss run.spike_factor multiplies; no loss is a spike before there are as
  // many.
  static constexpr size_t kWindow = 20;

  struct Verdict {
    int64_t first_step = 0;  // the first that went wrong, from 1
    std::string cause;
  };

  // `skips`: a step whose gradient is not finite leaves the weights as they are.
  explicit DivergenceJudge(const Deck::Run& rules, bool skips = true)
      : rules_(rules), skips_(skips) {}
  // As if the steps up to `step` had just been done: a job that starts again after each failure
  // must not step over a limit.
  void take_over(const MetricLines& lines, int64_t step);
  // After each step; `bad_gradient` names the tensor for whose sake it was skipped.
  std::optional<Verdict> judge(const TrainRecord& record, const std::string& bad_gradient);

 private:
  void note(const TrainRecord& record);

  const Deck::Run& rules_;
  bool skips_;
  int64_t skipped_in_a_row_ = 0;
  std::deque<double> losses_;  // of the last sound steps, the newest last
};

// Ends the session of a run that goes back; thrown by all ranks alike.
class Diverged : public SharedError {
 public:
  // `last_good`: the highest step whose weights gave a sound step; `rewind.step` is not yet known.
  Diverged(int64_t last_good, RewindRecord rewind)
      : SharedError(ExitCode::failure, rewind.cause),
        last_good_(last_good),
        rewind_(std::move(rewind)) {}
  int64_t last_good() const { return last_good_; }
  const RewindRecord& rewind() const { return rewind_; }

 private:
  int64_t last_good_;
  RewindRecord rewind_;
};

// How many times the run had gone back when it was at `step`, 0 for none.
int64_t rewinds_before(const MetricLines& lines, int64_t step);

// The first tensor of the model whose weights are not finite, and the ranks that hold it so; empty
// where all are sound. Every lane must be idle. Collective over `control`.
std::string find_bad_weights(const RankContext& context, Communicator& control);

}  // namespace voltapile
