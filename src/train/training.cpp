#include "training.hpp"

#include <algorithm>

#include "voltapile/base/clock.hpp"
#include "voltapile/base/log.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/optim/optim.hpp"
#include "voltapile/train/stop_request.hpp"

#include "run_state.hpp"

namespace voltapile {

namespace {
// After which a GPU's clock is set anew: it drifts by tens of microseconds a second.
constexpr double kSeconds = 10, kRecordedSeconds = 0.2;

// After each rewind the pictures come in the order, and with the augmentation, of another seed.
uint64_t data_seed(const Deck& deck, int64_t rewinds) {
  return deck.run.seed + static_cast<uint64_t>(rewinds);
}

}  // namespace

void Training::begin() {
  const Deck& deck = plan_.deck;
  if (deck.model.init.empty()) return initialise(context_, host_threads(deck, control_));
  const std::vector<std::string> notes = take_weights(context_, host_threads(deck, control_));
  if (!leads() || options_.quiet) return;
  log::info(format("  model.init: weights of {}", deck.model.init));
  for (const std::string& note : notes) log::info("    " + note);
}

void Training::start(const std::optional<std::filesystem::path>& checkpoint,
                     const std::optional<RewindRecord>& rewind) {
  StepState state;
  const Deck& deck = plan_.deck;
  state.loss_scale = first_loss_scale(deck.precision);
  state.multiplier = 1 / state.loss_scale;  // no norm is known yet
  agree(control_, [&] {
    const MetricLines lines = read_metrics(saver_.checkpoints().parent_path());
    rewinds_ = rewind ? rewind->rewinds : rewinds_before(lines, 0);
    if (!checkpoint) return begin();
    restore(context_, *checkpoint, Restore::everything, host_threads(deck, control_));
    const RunState stored = read_run_state(*checkpoint);
    state.inputs.step = stored.step;
    // A run that goes on in another type starts that type's scale.
    if (parse_deck(stored.deck, "checkpoint").precision.type == deck.precision.type) {
      state.loss_scale = stored.loss_scale;
      state.good_steps = stored.good_steps;
    }
    state.adam_step = stored.adam_step;
    state.skipped_steps = stored.skipped_steps;
    if (stored.multiplier)
      state.multiplier = *stored.multiplier * (stored.loss_scale / state.loss_scale);
    samples_ = stored.samples;
    saved_ = whole_ = stored.step;
    // The checkpoint knows of what went before it, the lines of a return to it.
    if (!rewind) rewinds_ = std::max(stored.rewinds, rewinds_before(lines, stored.step));
    divergence_.take_over(lines, stored.step);
  });
  first_step_ = issued_ = waited_ = state.inputs.step;
  engine_.set_state(state);
  if (data_.source != nullptr) {
    const int64_t per_rank = deck.batch.global / plan_.mesh.dp;
    loader_ = std::make_unique<Loader>(data_.source,
                                       LoaderOptions{.seed = data_seed(deck, rewinds_),
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
                                                     .workers = reading_threads(deck)},
                                       ring_.batches);
  }
  if (leads()) {
    folder_->write_deck_file(deck);  // only now: the run is known to be good
    metrics_ = std::make_unique<Metrics>(
        folder_->path(), issued_,
        goes_on(Attempt::one_of_many) ? LineFault::waits : LineFault::ends_run);
    if (rewind) {
      metrics_->add(*rewind);
      publish_metrics(Attempt::one_of_many);
    }
    const auto every = deck.run.log_every;
    if (!options_.quiet)
      progress_ = std::make_unique<Progress>(issued_, total_, every, output_is_terminal());
  }
  if (Recorder::is_wanted(context_))
    recorder_.emplace(context_, control_, saver_.checkpoints().parent_path(), issued_,
                      data_.samples);
  align_clock();
  // Everybody is ready before the clock starts.
  control_.barrier();
  began_ = last_save_at_ = last_step_at_ = now_seconds();
}

void Training::look(RankState& state) const {
  state.lanes = engine_.lane_states();
  show_wait_for_save(state);
  if (!evaluator_) return;
  const std::vector<LaneState> more = evaluator_->lane_states();
  state.lanes.insert(state.lanes.end(), more.begin(), more.end());
}

// A disk that is slow, or stands still for a while, holds up training as a save does.
void Training::show_wait_for_save(RankState& state) const {
  const std::optional<int> chunk = context_.hold().awaited();
  if (!chunk) return;
  state.stage = Stage::saving;
  for (LaneState& lane : state.lanes)
    if (lane.begun && (lane.lane == name_of(Lane::host) || lane.lane == name_of(Lane::disk)))
      lane.what += " (which waits until the checkpoint has that chunk's state)";
}

void Training::align_clock() {
  context_.device().align_clock();
  aligned_at_ = now_seconds();
}

void Training::judge(const TrainRecord& record, const StepState& state) {
  const std::string where =
      record.skipped ? parameter_name(plan_.architecture, state.bad_parameter) : "";
  const auto verdict = divergence_.judge(record, where);
  if (verdict) give_up(*verdict);
  if (record.skipped && leads()) {
    log::warn(format("step {} skipped: the gradient of {} is not finite (loss scale {})",
                     record.step, where, record.loss_scale));
  }
}

void Training::give_up(const DivergenceJudge::Verdict& verdict) {
  const Deck::Run& rules = plan_.deck.run;
  engine_.drain();
  const std::string bad = find_bad_weights(context_, control_);
  const std::string cause =
      format("the run has diverged: {}; {}", verdict.cause,
             bad.empty() ? "all weights are finite" : "not finite are " + bad);
  if (rules.on_divergence == OnDivergence::rewind && rewinds_ < rules.rewind_limit) {
    // The weights of a checkpoint are known to be good once a step with them was.
    throw Diverged(std::max<int64_t>(verdict.first_step - 2, 0),
                   {.from_step = waited_, .rewinds = rewinds_ + 1, .cause = cause});
  }
  throw SharedError(
      ExitCode::failure,
      format("{}{}. Lower optimizer.lr or raise optimizer.warmup_steps{}", cause,
             rewinds_ > 0 ? format(", after {} rewinds (run.rewind_limit)", rewinds_) : "",
             rules.on_divergence == OnDivergence::stop
                 ? "; run.on_divergence = \"rewind\" would go back to the last good checkpoint "
                   "and take the pictures in another order"
                 : ""));
}

const BatchMemory& Training::next_batch() {
  if (!loader_) return ring_.batches.front();
  const double asked = now_seconds();
  const BatchMemory& batch = loader_->next();
  if (recorder_) recorder_->host_work(HostWork::data_wait, issued_ + 1, asked, now_seconds());
  return batch;
}

void Training::finish_step() {
  const double asked = now_seconds();
  const StepResult result = engine_.wait_for_step();
  if (loader_) loader_->release();
  ++waited_;
  samples_ += plan_.deck.batch.global;
  timers_.add(result.timers);
  stop_ = stop_ || result.votes.stop;
  save_voted_ = save_voted_ || result.votes.save;
  // By the lane's clock: this thread may have been held up by issuing the next step meanwhile.
  const double at = std::max(result.ended, last_step_at_), looked = now_seconds();
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
  if (recorder_) {
    recorder_->host_work(HostWork::step_wait, waited_, asked, looked);
    recorder_->host_work(HostWork::step, waited_, last_step_at_, at);
    recorder_->step_waited(engine_, waited_);
  }
  last_step_at_ = at;
  const double every = recorder_ && recorder_->records_soon(waited_) ? kRecordedSeconds : kSeconds;
  if (looked - aligned_at_ >= every) align_clock();
  longest_step_ = std::max(longest_step_, record.seconds);
  const bool first = watch_.stage() == Stage::first_step;
  watch_.step_done(waited_, first ? 0 : record.seconds);
  if (first) watch_.set_stage(Stage::training);
  summary_.loss = record.loss;
  judge(record, result.state);
  if (!leads()) return;
  metrics_->add(record);
  if (saver_.saved() != nullptr) announce(*saver_.saved());
  if (goes_on(Attempt::one_of_many)) warn_of_failed_save(saver_.fault());
  const bool saving = saver_.under_way() && !saver_.ended();
  if (progress_) progress_->show(record, saving ? format("saving step {}", saved_) : "");
  if (options_.on_step) options_.on_step(record);
}

void Training::evaluate() {
  if (!evaluator_) return;
  drain();
  const StageScope stage(watch_, Stage::evaluation);
  const double began = now_seconds();
  const bool averaged = plan_.deck.optimizer.ema > 0;
  if (averaged) show_weights(context_, Shown::averaged);
  summary_.evaluation = evaluator_->run(waited_);
  if (averaged) show_weights(context_, Shown::master);
  if (recorder_) recorder_->host_work(HostWork::evaluate, waited_ + 1, began, now_seconds());
  last_step_at_ += now_seconds() - began;  // not the next step's time
  if (!leads()) return;
  metrics_->add(*summary_.evaluation);
  if (progress_) progress_->finish();
  if (!options_.quiet) {
    log::info(format(
        "step {}: test loss {:.4f}, top-1 {:.2f} %, top-5 {:.2f} % of {} pictures ({})", waited_,
        summary_.evaluation->loss, 100 * summary_.evaluation->top1, 100 * summary_.evaluation->top5,
        show_grouped(summary_.evaluation->samples), show_seconds(now_seconds() - began)));
  }
}

bool Training::goes_on(Attempt attempt) const {
  return attempt == Attempt::one_of_many && plan_.deck.checkpoint.on_error == SaveFault::go_on;
}

void Training::finish_save(Attempt attempt) {
  if (!saver_.under_way()) return;
  const StageScope stage(watch_, Stage::saving);
  try {
    const Saver::Saved saved = saver_.finish();
    longest_save_ = std::max(longest_save_, saved.seconds);
    whole_ = saved.step;
    announce(saved);
  } catch (const SharedError& error) {
    if (!goes_on(attempt)) throw;
    warn_of_failed_save(error.what());
    saved_ = whole_;
  }
}

// Said once a save, as soon as it is known.
void Training::warn_of_failed_save(const std::string& fault) {
  if (!leads() || fault.empty() || warned_ == saved_) return;
  warned_ = saved_;
  if (progress_) progress_->finish();
  log::warn(format("{}; training goes on (checkpoint.on_error), {}", fault,
                   whole_ < 0 ? "without any checkpoint so far"
                              : format("the checkpoint of step {} stays", whole_)));
}

void Training::publish_metrics(Attempt attempt) {
  if (!metrics_) return;
  try {
    metrics_->publish();
  } catch (const Error& error) {
    if (!goes_on(attempt)) throw;
    log::warn(error.what());
  }
}

bool Training::save_time_has_come() const {
  const double every = 60 * plan_.deck.checkpoint.every_minutes;
  const bool saving = saver_.under_way() && !saver_.ended();
  return leads() && every > 0 && !saving && now_seconds() - last_save_at_ >= every;
}

void Training::check_integrity() {
  if (!integrity_) return;
  drain();
  // Before the first step a chunk's input holds nothing that its work could be repeated on.
  if (checked_ == waited_ || waited_ == first_step_) return;
  const StageScope stage(watch_, Stage::checking);
  const double began = now_seconds();
  integrity_->check(engine_, waited_);
  checked_ = waited_;
  last_step_at_ += now_seconds() - began;  // not the next step's time
}

// Said once, as soon as it is known.
void Training::announce(const Saver::Saved& saved) {
  if (!leads() || options_.quiet || announced_ == saved.step) return;
  announced_ = saved.step;
  if (progress_) progress_->finish();
  // To three digits, by which disks are compared.
  const auto shown = [](double seconds) {
    return 1 <= seconds && seconds < 60 ? format("{:.3g} s", seconds) : show_seconds(seconds);
  };
  std::string text =
      format("step {}: saved {} in {}; training stood still for {} of it", saved.step,
             saved.folder.string(), shown(saved.seconds), shown(saved.stall_seconds));
  if (plan_.deck.memory.optimizer != Home::device)
    text += format(", updates waited {}", shown(saved.update_seconds));
  log::info(text);
}

void Training::save(Attempt attempt) {
  drain();
  save_voted_ = false;
  const double stopped = now_seconds();
  finish_save(attempt);
  if (saved_ == waited_) return;
  check_integrity();  // what is wrong is not saved
  const StageScope stage(watch_, Stage::saving);
  const double began = last_save_at_ = now_seconds();
  const StepState state = engine_.next_state();
  const RunState run{.step = waited_,
                     .samples = samples_,
                     .seed = plan_.deck.run.seed,
                     .loss_scale = state.loss_scale,
                     .good_steps = state.good_steps,
                     .adam_step = state.adam_step,
                     .skipped_steps = state.skipped_steps,
                     .multiplier = plan_.train.shape.early_updates ? std::optional(state.multiplier)
                                                                   : std::nullopt,
                     .rewinds = rewinds_,
                     .deck = write_deck(plan_.deck)};
  agree(control_, [&] {
    publish_metrics(attempt);
    saver_.prepare();
  });
  const Deck::Checkpoint& rules = plan_.deck.checkpoint;
  saver_.start(run, {.last = rules.keep_last, .every = rules.keep_every});
  saved_ = waited_;
  if (recorder_) recorder_->host_work(HostWork::save, waited_ + 1, stopped, now_seconds());
  last_step_at_ += now_seconds() - began;  // not the next step's time
}

// Whether the time limit would pass before the steps in flight and a checkpoint are done.
bool Training::time_is_short() const {
  if (!plan_.deck.run.walltime_seconds) return false;
  constexpr double kLeastMarginSeconds = 1;
  const double longest_save = std::max(longest_save_, saver_.seconds());
  const double needed = 3 * longest_step_ + 2 * longest_save + kLeastMarginSeconds;
  return now_seconds() - options_.began + needed > *plan_.deck.run.walltime_seconds;
}

TrainSummary Training::run(const std::optional<std::filesystem::path>& checkpoint,
                           const std::optional<RewindRecord>& rewind) {
  start(checkpoint, rewind);
  watch_.step_done(waited_, 0);
  watch_.set_stage(Stage::first_step);
  const Deck& deck = plan_.deck;
  const auto due = [&](int64_t every) { return every > 0 && issued_ % every == 0; };
  while (issued_ < total_ && !stop_) {
    const StepInputs inputs{learning_rate(deck.optimizer, issued_, total_), issued_,
                            samples_ + (issued_ - waited_) * deck.batch.global};
    // Whether a save has failed is known at different times on different ranks: they stop together.
    const BatchMemory& batch = next_batch();
    const double began = now_seconds();
    engine_.issue(inputs, batch,
                  {.stop = stop_requested() || time_is_short() ||
                           (saver_.failed() && !goes_on(Attempt::one_of_many)),
                   .save = save_time_has_come()});
    ++issued_;
    if (recorder_) recorder_->host_work(HostWork::issue, issued_, began, now_seconds());
    // The host stays one step ahead of the device.
    if (issued_ - waited_ > 1) finish_step();
    if (issued_ < total_ && due(deck.eval.every_steps)) evaluate();
    if (due(deck.run.check_every_steps)) check_integrity();
    if (issued_ < total_ && (save_voted_ || due(deck.checkpoint.every_steps)))
      save(Attempt::one_of_many);
  }
  drain();
  if (recorder_) recorder_->finish(engine_, waited_);
  finish_save(Attempt::one_of_many);
  summary_.seconds = now_seconds() - began_;
  const bool finished = waited_ == total_;
  if (finished) evaluate();
  if (!finished || deck.checkpoint.at_end) save(Attempt::last);
  finish_save(Attempt::last);
  publish_metrics(Attempt::last);
  // Nobody leaves while another may still be held up: there would be nobody to notice.
  watch_.set_stage(Stage::ending);
  control_.barrier();
  if (progress_) progress_->finish();
  summary_.steps = waited_;
  summary_.rewinds = rewinds_;
  summary_.code = finished ? ExitCode::done : ExitCode::stopped_early;
  timers_.add(engine_.last_timers());
  summary_.timers = timers_;
  summary_.recordings = context_.device().recordings();
  summary_.timers.data_wait_seconds = loader_ ? loader_->waited_seconds() : 0;
  return summary_;
}

}  // namespace voltapile
