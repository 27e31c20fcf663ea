// Private to train: one training session of one rank, from its start or a checkpoint to its end.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>

#include "voltapile/train/progress.hpp"
#include "voltapile/train/run_folder.hpp"
#include "voltapile/train/trainer.hpp"

#include "divergence.hpp"
#include "integrity.hpp"
#include "recorder.hpp"
#include "saver.hpp"
#include "session.hpp"

namespace voltapile {

class Training {
 public:
  Training(const Plan& plan, Communicator& control, RankContext& context, Watch& watch,
           const TrainOptions& options, RunFolder* folder, std::filesystem::path checkpoints,
           OpenedSource data, OpenedSource test, int64_t total)
      : plan_(plan),
        control_(control),
        context_(context),
        watch_(watch),
        options_(options),
        folder_(folder),
        data_(std::move(data)),
        total_(total),
        engine_(context, plan.train),
        divergence_(plan.deck.run, !plan.train.shape.early_updates),
        ring_(make_ring(context, plan.train, plan.batches_held())),
        saver_(context, *context.links().checkpoint, std::move(checkpoints), options.before_write) {
    if (test.samples > 0) evaluator_.emplace(context, std::move(test));
    if (plan.deck.run.check_every_steps > 0) integrity_.emplace(context, control);
    if (plan.saves()) saver_.reserve();
    engine_.keep_lane_states();
    watched_ = watch.observe([this](RankState& state) { look(state); });
  }

  // `rewind`: what led back to `checkpoint`, or without one to the start. Diverged when the deck
  // wants the run to go back.
  TrainSummary run(const std::optional<std::filesystem::path>& checkpoint,
                   const std::optional<RewindRecord>& rewind);

 private:
  void look(RankState& state) const;  // from the watch's thread
  void show_wait_for_save(RankState& state) const;
  const BatchMemory& next_batch();
  void start(const std::optional<std::filesystem::path>& checkpoint,
             const std::optional<RewindRecord>& rewind);
  void begin();  // a new run's weights
  void finish_step();
  void evaluate();         // where the deck has a test part
  void check_integrity();  // where the deck asks for it
  bool time_is_short() const;
  // By rank 0's clock; its vote brings all ranks to save at one step.
  bool save_time_has_come() const;
  // Whether a save that fails ends the run, whatever the deck says: nothing comes after it.
  enum class Attempt { one_of_many, last };
  void save(Attempt attempt);         // begins; training goes on
  void finish_save(Attempt attempt);  // of the save under way, if any
  bool goes_on(Attempt attempt) const;
  void warn_of_failed_save(const std::string& fault);
  void publish_metrics(Attempt attempt);
  void announce(const Saver::Saved& saved);
  void drain() {
    while (waited_ < issued_) finish_step();
    engine_.drain();
  }
  bool leads() const { return folder_ != nullptr; }
  void align_clock();  // the device's with now_seconds()
  void judge(const TrainRecord& record, const StepState& state);
  [[noreturn]] void give_up(const DivergenceJudge::Verdict& verdict);

  const Plan& plan_;
  Communicator& control_;
  RankContext& context_;
  Watch& watch_;
  const TrainOptions& options_;
  RunFolder* folder_;  // rank 0 only
  OpenedSource data_;
  int64_t total_;
  Engine engine_;
  DivergenceJudge divergence_;
  std::optional<Evaluator> evaluator_;
  BatchRing ring_;
  Saver saver_;
  std::optional<Integrity> integrity_;
  std::optional<Recorder> recorder_;  // with trace.steps, and on GPUs
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Progress> progress_;
  SummaryTimers timers_;
  int64_t issued_ = 0, waited_ = 0, checked_ = -1, first_step_ = 0;  // steps
  // Steps of checkpoints: begun last, whole last, told of last; and whose failure was told of last.
  int64_t saved_ = -1, whole_ = -1, announced_ = -1, warned_ = -1;
  int64_t samples_ = 0;
  int64_t rewinds_ = 0;  // of the whole run: it gives the order of the data
  bool stop_ = false, save_voted_ = false;
  double began_ = 0, last_save_at_ = 0, last_step_at_ = 0, longest_step_ = 0, longest_save_ = 0;
  double aligned_at_ = 0;
  TrainSummary summary_;
  Watch::Subject watched_;  // the last: gone before what it looks at
};

}  // namespace voltapile
