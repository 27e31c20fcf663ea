#include "voltapile/train/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "voltapile/base/log.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/optim/optim.hpp"
#include "voltapile/train/progress.hpp"
#include "voltapile/train/run_folder.hpp"
#include "voltapile/train/stop_request.hpp"

#include "run_state.hpp"
#include "session.hpp"

namespace voltapile {

namespace {

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// Steps in a row without a finite gradient after which going on is pointless.
constexpr int kSkipLimit = 50;

int64_t total_steps(const Deck& deck, int64_t samples) {
  if (deck.run.steps) return *deck.run.steps;
  const double exact =
      *deck.run.epochs * static_cast<double>(samples) / static_cast<double>(deck.batch.global);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(exact - 1e-9)));
}

// One training session of one rank.
class Training {
 public:
  Training(const Plan& plan, Communicator& control, RankContext& context,
           const TrainOptions& options, RunFolder* folder, std::filesystem::path checkpoints,
           OpenedSource data, OpenedSource test, int64_t total)
      : plan_(plan),
        control_(control),
        context_(context),
        options_(options),
        folder_(folder),
        checkpoints_(std::move(checkpoints)),
        data_(std::move(data)),
        total_(total),
        engine_(context, plan.train),
        evaluator_(context, std::move(test)),
        ring_(make_ring(context, plan.train, Engine::kRing)) {}

  TrainSummary run(const std::optional<std::filesystem::path>& checkpoint);

 private:
  void start(const std::optional<std::filesystem::path>& checkpoint);
  void finish_step();
  void evaluate();
  void save();
  void drain() {
    while (waited_ < issued_) finish_step();
    engine_.drain();
  }
  bool leads() const { return folder_ != nullptr; }
  void report_skip(const StepState& state);

  const Plan& plan_;
  Communicator& control_;
  RankContext& context_;
  const TrainOptions& options_;
  RunFolder* folder_;  // rank 0 only
  std::filesystem::path checkpoints_;
  OpenedSource data_;
  int64_t total_;
  Engine engine_;
  Evaluator evaluator_;
  BatchRing ring_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Progress> progress_;
  SummaryTimers timers_;
  int64_t issued_ = 0, waited_ = 0, saved_ = -1;  // steps
  int64_t samples_ = 0;
  int skipped_in_a_row_ = 0;
  bool stop_ = false;
  double began_ = 0, last_step_at_ = 0;
  TrainSummary summary_;
};

void Training::start(const std::optional<std::filesystem::path>& checkpoint) {
  StepState state;
  const Deck& deck = plan_.deck;
  state.loss_scale = deck.precision.type != DType::f16 ? 1.0
                     : deck.precision.loss_scale       ? *deck.precision.loss_scale
                                                       : deck.precision.initial_loss_scale;
  agree(control_, [&] {
    if (!checkpoint) return initialise(context_);
    restore(context_, *checkpoint, Restore::everything);
    const RunState stored = read_run_state(*checkpoint);
    state.inputs.step = stored.step;
    state.loss_scale = stored.loss_scale;
    state.good_steps = stored.good_steps;
    state.adam_step = stored.adam_step;
    state.skipped_steps = stored.skipped_steps;
    samples_ = stored.samples;
    saved_ = stored.step;
  });
  issued_ = waited_ = state.inputs.step;
  engine_.set_state(state);
  if (data_.source != nullptr) {
    const int64_t per_rank = deck.batch.global / plan_.mesh.dp;
    loader_ = std::make_unique<Loader>(data_.source,
                                       LoaderOptions{.seed = deck.run.seed,
                                                     .shuffle = true,
                                                     .flip = deck.data.flip,
                                                     .shift = deck.data.shift,
                                                     .channels = deck.model.channels,
                                                     .height = deck.model.image[0],
                                                     .width = deck.model.image[1],
                                                     .samples_per_step = deck.batch.global,
                                                     .rank_offset = context_.coord().dp * per_rank,
                                                     .rank_samples = per_rank,
                                                     .first_sample = samples_,
                                                     .workers = std::max(1, deck.data.workers)},
                                       ring_.batches);
  }
  if (leads()) {
    metrics_ = std::make_unique<Metrics>(folder_->path(), issued_);
    if (!options_.quiet) {
      progress_ =
          std::make_unique<Progress>(issued_, total_, deck.run.log_every, output_is_terminal());
    }
  }
  // Everybody is ready before the clock starts.
  control_.barrier();
  began_ = last_step_at_ = now();
}

void Training::report_skip(const StepState& state) {
  const std::string where = parameter_name(plan_.architecture, state.bad_parameter);
  if (++skipped_in_a_row_ >= kSkipLimit) {
    throw SharedError(ExitCode::failure, format("{} steps in a row had a gradient that is not "
                                                "finite, first in {}, at loss scale {}; lower "
                                                "optimizer.lr or raise optimizer.warmup_steps",
                                                skipped_in_a_row_, where, state.loss_scale));
  }
  if (leads()) {
    log::warn(format("step {} skipped: the gradient of {} is not finite (loss scale {})",
                     state.inputs.step + 1, where, state.loss_scale));
  }
}

void Training::finish_step() {
  const StepResult result = engine_.wait_for_step();
  if (loader_) loader_->release();
  ++waited_;
  samples_ += plan_.deck.batch.global;
  timers_.add(result.timers);
  stop_ = stop_ || result.stop;
  const double at = now();
  const TrainRecord record{
      .step = waited_,
      .loss = result.state.loss,
      .learning_rate = result.state.inputs.learning_rate,
      .grad_norm = result.state.grad_norm,
      .loss_scale = result.state.loss_scale,
      .samples_per_second =
          static_cast<double>(plan_.deck.batch.global) / std::max(at - last_step_at_, 1e-9),
      .seconds = at - last_step_at_,
      .skipped = result.state.skip != 0,
  };
  last_step_at_ = at;
  summary_.loss = record.loss;
  if (record.skipped) report_skip(result.state);
  else skipped_in_a_row_ = 0;
  if (!leads()) return;
  metrics_->add(record);
  if (progress_) progress_->show(record);
  if (options_.on_step) options_.on_step(record);
}

void Training::evaluate() {
  drain();
  const double began = now();
  summary_.evaluation = evaluator_.run(waited_);
  last_step_at_ += now() - began;  // not the next step's time
  if (!leads()) return;
  metrics_->add(*summary_.evaluation);
  if (progress_) progress_->finish();
  if (!options_.quiet) {
    log::info(format(
        "step {}: test loss {:.4f}, top-1 {:.2f} %, top-5 {:.2f} % of {} pictures ({})", waited_,
        summary_.evaluation->loss, 100 * summary_.evaluation->top1, 100 * summary_.evaluation->top5,
        show_grouped(summary_.evaluation->samples), show_seconds(now() - began)));
  }
}

void Training::save() {
  drain();
  if (saved_ == waited_) return;
  const double began = now();
  const StepState state = engine_.next_state();
  const RunState run{.step = waited_,
                     .samples = samples_,
                     .seed = plan_.deck.run.seed,
                     .loss_scale = state.loss_scale,
                     .good_steps = state.good_steps,
                     .adam_step = state.adam_step,
                     .skipped_steps = state.skipped_steps,
                     .deck = write_deck(plan_.deck)};
  std::filesystem::path folder;
  agree(control_, [&] {
    folder = voltapile::save(context_, checkpoints_, run, plan_.deck.checkpoint.keep_last);
  });
  saved_ = waited_;
  last_step_at_ += now() - began;
  if (!leads()) return;
  if (progress_) progress_->finish();
  if (!options_.quiet)
    log::info(
        format("step {}: saved {} ({})", waited_, folder.string(), show_seconds(now() - began)));
}

TrainSummary Training::run(const std::optional<std::filesystem::path>& checkpoint) {
  start(checkpoint);
  const Deck& deck = plan_.deck;
  const auto due = [&](int64_t every) { return every > 0 && issued_ % every == 0; };
  while (issued_ < total_ && !stop_) {
    const bool out_of_time =
        deck.run.walltime_seconds && now() - began_ > *deck.run.walltime_seconds;
    const StepInputs inputs{learning_rate(deck.optimizer, issued_, total_), issued_,
                            samples_ + (issued_ - waited_) * deck.batch.global};
    engine_.issue(inputs, loader_ ? loader_->next() : ring_.batches.front(),
                  stop_requested() || out_of_time);
    ++issued_;
    // The host stays one step ahead of the device.
    if (issued_ - waited_ > 1) finish_step();
    if (issued_ < total_ && due(deck.eval.every_steps)) evaluate();
    if (issued_ < total_ && due(deck.checkpoint.every_steps)) save();
  }
  drain();
  summary_.seconds = now() - began_;
  const bool finished = waited_ == total_;
  if (finished) evaluate();
  if (!finished || deck.checkpoint.at_end) save();
  if (metrics_) metrics_->publish();
  if (progress_) progress_->finish();
  summary_.steps = waited_;
  summary_.code = finished ? ExitCode::done : ExitCode::stopped_early;
  summary_.timers = timers_;
  summary_.timers.data_wait_seconds = loader_ ? loader_->waited_seconds() : 0;
  return summary_;
}

}  // namespace

TrainSummary train(const Deck& deck, std::unique_ptr<Communicator> world,
                   const TrainOptions& options) {
  Plan plan;
  agree(*world, [&] { plan = make_plan(deck, world->size()); });
  const OpenedSource data = open_source_everywhere(plan, *world, Part::train);
  const OpenedSource test = open_source_everywhere(plan, *world, Part::test);
  const int64_t total = total_steps(plan.deck, data.samples);

  std::unique_ptr<RunFolder> folder;
  agree(*world, [&] {
    if (world->rank() == 0) folder = std::make_unique<RunFolder>(plan.deck, options.fresh);
  });
  const std::filesystem::path run_dir =
      world->gather_text(folder ? folder->path().string() : "").front();
  std::optional<std::filesystem::path> checkpoint;
  RunState stored;
  agree(*world, [&] {
    checkpoint = latest_checkpoint(run_dir / "checkpoints");
    if (checkpoint) stored = read_run_state(*checkpoint);
  });
  if (folder) {
    log::add_file(folder->path() / "log.txt");
    folder->write_deck_file(plan.deck);
  }
  if (checkpoint && stored.step >= total) {
    TrainSummary summary;
    summary.run_dir = run_dir.string();
    summary.steps = stored.step;
    summary.was_finished = true;
    return summary;
  }
  const auto say = [&](const std::string& line) {
    if (folder && !options.quiet) log::info(line);
  };
  const std::unique_ptr<Device> device = make_device(plan.deck, *world);
  say(format("{}: {} on {}, {} parameters, {} schedule", run_dir.string(), plan.mesh.text(),
             device->describe(),
             show_count(static_cast<double>(plan.architecture.parameter_count())),
             plan.deck.parallel.schedule));
  say(checkpoint
          ? format("continuing from {} (step {} of {})", checkpoint->string(), stored.step, total)
          : format("starting: {} steps of {} samples, {} pictures to learn from", total,
                   plan.deck.batch.global, show_grouped(data.samples)));
  Communicator& control = *world;
  const int rank = control.rank();
  Links links = make_plan_links(plan, std::move(world));
  try {
    RankContext context(plan, *device, links, rank);
    Training training(plan, control, context, options, folder.get(), run_dir / "checkpoints", data,
                      test, total);
    TrainSummary summary = training.run(checkpoint);
    summary.run_dir = run_dir.string();
    return summary;
  } catch (const SharedError&) { throw; } catch (const std::exception& error) {
    // Peers may be waiting for this rank inside a collective.
    control.abort(format("{} failed: {}", plan.mesh.rank_text(rank), error.what()));
    throw;
  }
}

EvalRecord evaluate(const Deck& deck, std::unique_ptr<Communicator> world,
                    const std::string& checkpoint) {
  Plan plan;
  agree(*world, [&] { plan = make_plan(deck, world->size()); });
  const OpenedSource test = open_source_everywhere(plan, *world, Part::test);
  RunState stored;
  agree(*world, [&] { stored = read_run_state(checkpoint); });
  const std::unique_ptr<Device> device = make_device(plan.deck, *world);
  Communicator& control = *world;
  const int rank = control.rank();
  Links links = make_plan_links(plan, std::move(world));
  RankContext context(plan, *device, links, rank);
  agree(control, [&] { restore(context, checkpoint, Restore::weights); });
  return Evaluator(context, test).run(stored.step);
}

}  // namespace voltapile
