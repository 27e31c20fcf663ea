#include "voltapile/watch/watch.hpp"

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <thread>

#include <unistd.h>

#include "voltapile/base/clock.hpp"
#include "voltapile/base/log.hpp"
#include "voltapile/base/stacks.hpp"
#include "voltapile/base/units.hpp"

#include "bystanders.hpp"
#include "datagrams.hpp"
#include "dump.hpp"

namespace voltapile {

namespace {

constexpr double kMostTick = 0.25, kLeastTick = 0.05;
// A rank that is heard tells its state at every look; on a machine with too little CPU time the
// looks come late.
constexpr double kSilenceSeconds = 1.5;
// What ranks have to write their states, once they are asked.
constexpr double kAnswerSeconds = 3;
// Of the limit, where nobody is heard.
constexpr double kAlone = 5;
// A launcher that goes takes its ranks with it; those that it forgets end by themselves.
constexpr double kOrphanSeconds = 2;

// In a process whose ranks stand still: messages of the launcher, say.
constexpr uint64_t kFewBytes = 16384;
// Printing the report and ending the job by the launcher; then this rank just ends.
constexpr std::chrono::seconds kEndPatience(20);

// What a launcher has to end the job when a rank is gone.
constexpr double kLauncherSeconds = 15;
// A machine may refuse one datagram for reasons of its own.
constexpr int kRefusals = 2;

constexpr const char* kAsk = "ask";
constexpr const char* kLeave = "leave";
constexpr const char* kEnd = "end";  // whoever dies from now on is no news

}  // namespace

double hang_limit_seconds(Stage stage, HangTimeout timeout, double longest_step_seconds) {
  constexpr double kSteps = 20, kLeastSeconds = 60, kUnmeasuredSeconds = 1800, kUnmeasured = 10;
  const bool measured = stage == Stage::training;
  if (timeout) return *timeout * (measured ? 1 : kUnmeasured);
  return std::max(measured ? kLeastSeconds : kUnmeasuredSeconds, kSteps * longest_step_seconds);
}

void add_calls(const Communicator& communicator, RankState& state) {
  if (communicator.size() == 1) return;
  const Communicator::Calls calls = communicator.calls();
  if (calls.begun == 0) return;
  state.calls.push_back({communicator.name, calls.last, calls.begun, calls.ended});
}

struct Watch::Impl {
  Impl(Communicator& world_, WatchOptions options_)
      : world(world_),
        options(std::move(options_)),
        post(world_),
        others(post.size()),
        departed(static_cast<size_t>(post.size())) {
    for (int rank = 0; rank < post.size(); ++rank) {
      others.at(rank).place = format("rank {}", rank);
      others.at(rank).host = post.host(rank);
    }
  }

  void work();
  void listen(double until);
  void tell(const RankState& state) const;
  RankState look();
  int judge() const;
  double limit() const;
  bool hangs() const;
  void report();
  void end(const HangReport& report);
  void answer();
  void end_orphan(double passed);
  void look_for_the_dead(double passed);
  bool is_given_up();
  void tell_twice(const char* what) const;
  std::string place_of(int rank);
  bool is_watcher(int rank) const { return rank == 0 || rank == post.size() - 1; }

  Communicator& world;
  const WatchOptions options;
  watch::Datagrams post;
  const pid_t launcher = getppid();

  // Told by the rank's own threads.
  std::atomic<Stage> stage{Stage::start};
  std::atomic<int64_t> step{0};
  std::atomic<double> longest_step{0};
  std::atomic<double> timeout{0};  // 0: auto
  std::mutex mutex;                // guards the next five
  std::list<std::function<void(RankState&)>> looks;
  std::list<std::function<void(const std::string&)>> give_ups;
  std::vector<std::string> places;
  std::filesystem::path folder;
  bool stopping = false;

  // The watch's thread's own.
  watch::Bystanders others;
  std::vector<bool> departed;
  double since_death = 0;
  RankState state;
  double now = 0, stalled = 0, orphaned = 0;
  uint64_t bytes = 0, bytes_moved = 0;
  bool asked = false, answered = false, over = false, ending = false;
  watch::Dump dump;
  std::thread thread;
};

double Watch::Impl::limit() const {
  const double given = timeout.load();
  // Where one rank's updates wait for its disk, the others wait for that rank.
  const bool saves = state.stage == Stage::saving || others.any_saves(kSilenceSeconds);
  return hang_limit_seconds(saves ? Stage::saving : stage.load(),
                            given > 0 ? HangTimeout(given) : std::nullopt, longest_step.load());
}

RankState Watch::Impl::look() {
  RankState seen;
  seen.stage = stage.load();
  seen.step = step.load();
  // This look itself reads some bytes, and answering writes many.
  const uint64_t before = std::exchange(bytes, watch::process_bytes());
  if (!answered && bytes > before + kFewBytes) bytes_moved += bytes - before;
  seen.bytes = bytes_moved;
  seen.answers = answered && dump.ended();
  add_calls(world, seen);
  const std::lock_guard lock(mutex);
  for (const auto& each : looks) each(seen);
  return seen;
}

void Watch::Impl::tell(const RankState& told) const {
  const std::string text = write_rank_state(told);
  for (int rank = 0; rank < post.size(); ++rank)
    if (rank != post.rank() && (is_watcher(rank) || is_watcher(post.rank()))) post.send(rank, text);
}

void Watch::Impl::listen(double until) {
  for (double left = until - now_seconds(); left > 0; left = until - now_seconds()) {
    // Rounded up: a patience of 0 would spin.
    const auto message = post.receive(std::chrono::milliseconds(static_cast<int>(left * 1e3) + 1));
    if (!message) continue;
    if (message->text == kAsk) asked = true;
    else if (message->text == kEnd) ending = true;
    else if (message->text == kLeave) departed[static_cast<size_t>(message->from)] = true;
    else if (const auto told = read_rank_state(message->text)) others.heard(message->from, *told);
  }
}

// The rank that judges, as far as this one can tell.
int Watch::Impl::judge() const {
  for (int rank : {0, post.size() - 1})
    if (rank == post.rank() || others.is_heard(rank, kSilenceSeconds)) return rank;
  return post.rank();
}

bool Watch::Impl::hangs() const {
  const double most = limit();
  if (stalled < most || judge() != post.rank()) return false;
  // A rank that is not a watcher, and hears none, knows of nobody.
  if (!is_watcher(post.rank())) return stalled > kAlone * most;
  // Some rank may be at work for the others, which wait: reading a checkpoint, say.
  return others.stalled_seconds(kSilenceSeconds, stalled) > most * 0.9 || stalled > kAlone * most;
}

void Watch::Impl::answer() {
  asked = false;
  if (answered) return;
  std::filesystem::path file;
  const std::string place = place_of(post.rank());
  {
    const std::lock_guard lock(mutex);
    if (!folder.empty()) file = folder / format("rank_{:05}.txt", post.rank());
  }
  dump.start(file, place, state);
  answered = true;
}

void Watch::Impl::end(const HangReport& report) {
  tell_twice(kEnd);
  if (options.end_job) {
    std::thread([] {
      std::this_thread::sleep_for(kEndPatience);
      _exit(static_cast<int>(ExitCode::failure));
    }).detach();
    options.end_job(report);
  }
  {
    const std::lock_guard lock(mutex);
    for (const auto& each : give_ups) each(report.verdict);
  }
  world.abort(report.verdict);
  over = true;
}

void Watch::Impl::report() {
  const RankState before = state;
  const double stood = stalled, most = limit();
  answer();
  const double end_of_patience = now_seconds() + kAnswerSeconds;
  const auto complete = [&] {
    for (int rank = 0; rank < post.size(); ++rank) {
      const Witness& witness = others.at(rank);
      if (rank != post.rank() && witness.known && !witness.state.answers) return false;
    }
    return dump.ended();
  };
  for (int rank = 0; rank < post.size(); ++rank) others.at(rank).answers = false;
  while (now_seconds() < end_of_patience && !complete()) {
    for (int rank = 0; rank < post.size(); ++rank)
      if (rank != post.rank()) post.send(rank, kAsk);
    listen(now_seconds() + kLeastTick);
    if (look().moved_since(before)) {  // it was slow, not stuck
      stalled = 0;
      answered = false;
      return;
    }
  }
  for (int rank = 0; rank < post.size(); ++rank) {
    Witness& witness = others.at(rank);
    witness.answers = rank == post.rank() || (witness.known && witness.state.answers) ||
                      others.is_heard(rank, kSilenceSeconds);
    if (!witness.answers) witness.silent_seconds += kAnswerSeconds;
  }
  others.heard(post.rank(), before);
  std::vector<Witness> witnesses = others.all();
  for (int rank = 0; rank < post.size(); ++rank)
    witnesses[static_cast<size_t>(rank)].place = place_of(rank);
  const Diagnosis diagnosis = diagnose(witnesses);
  HangReport report{
      .details = format("The job stands still. Nothing has moved for {}; {}, the limit is {} "
                        "(run.hang_timeout).",
                        show_seconds(stood), name_of(before.stage), show_seconds(most)),
      .verdict = diagnosis.verdict};
  for (const std::string& line : diagnosis.lines) report.details += "\n  " + line;
  report.details += dump.outcome();
  end(report);
}

// Under a launcher only: a program that was started by hand may well be left by its shell.
void Watch::Impl::end_orphan(double passed) {
  if (!options.end_job || post.size() == 1 || getppid() == launcher) return;
  orphaned += passed;
  if (orphaned > kOrphanSeconds) _exit(static_cast<int>(ExitCode::failure));
}

std::string Watch::Impl::place_of(int rank) {
  const std::lock_guard lock(mutex);
  return places.empty() ? others.at(rank).place : places[static_cast<size_t>(rank)];
}

// Whether another rank has failed and said so: then the launcher's ending of the rest is no news.
bool Watch::Impl::is_given_up() {
  try {
    world.poll_error();
    return false;
  } catch (const PeerFailure&) { return true; }
}

void Watch::Impl::look_for_the_dead(double passed) {
  if (!is_watcher(post.rank()) || !options.say) return;
  int first = -1;
  for (int rank = 0; rank < post.size(); ++rank) {
    if (rank == post.rank() || departed[static_cast<size_t>(rank)] || !others.at(rank).known)
      continue;
    if (post.refusals(rank) >= kRefusals && first < 0) first = rank;
  }
  if (first < 0) return;
  Witness dead = others.at(first);
  dead.place = place_of(first);
  if (!std::exchange(others.at(first).gone, true) && (post.rank() == 0 || first == 0) && !ending &&
      !is_given_up())
    options.say(describe_gone(dead));
  since_death += passed;
  if (since_death > kLauncherSeconds)
    end({.details = "The launcher has not ended the job.", .verdict = describe_gone(dead)});
}

// More than once: one may be lost.
void Watch::Impl::tell_twice(const char* what) const {
  for (int times = 0; times < 2; ++times)
    for (int rank = 0; rank < post.size(); ++rank)
      if (rank != post.rank() && (is_watcher(rank) || is_watcher(post.rank())))
        post.send(rank, what);
}

void Watch::Impl::work() {
  now = now_seconds();
  tell(look());  // so that a rank which dies at once is missed
  while (true) {
    {
      const std::lock_guard lock(mutex);
      if (stopping) return tell_twice(kLeave);
    }
    const double tick = std::clamp(limit() / 20, kLeastTick, kMostTick);
    listen(now + tick);
    // What passed beyond two ticks passed while this process was suspended.
    const double before = std::exchange(now, now_seconds());
    const double passed = std::min(now - before, 2 * tick);
    others.pass(passed);
    RankState seen = look();
    const bool moved = seen.moved_since(state);
    stalled = moved ? 0 : stalled + passed;
    answered = answered && !moved;
    state = std::move(seen);
    state.stalled_seconds = stalled;
    others.heard(post.rank(), state);
    if (over) continue;
    if (asked) answer();
    tell(state);
    end_orphan(passed);
    look_for_the_dead(passed);
    if (hangs()) report();
  }
}

Watch::Watch(Communicator& world, WatchOptions options) {
  prepare_thread_stacks();
  impl_ = std::make_unique<Impl>(world, std::move(options));
  if (!impl_->post.fault().empty())
    log::warn(format("{}: should the job hang, this rank cannot be named", impl_->post.fault()));
  impl_->thread = std::thread([impl = impl_.get()] { impl->work(); });
}

Watch::~Watch() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->thread.join();
}

void Watch::set_timeout(HangTimeout timeout) { impl_->timeout = timeout.value_or(0); }

void Watch::set_places(std::vector<std::string> places) {
  const std::lock_guard lock(impl_->mutex);
  impl_->places = std::move(places);
}

void Watch::set_folder(const std::filesystem::path& folder) {
  const std::lock_guard lock(impl_->mutex);
  impl_->folder = folder;
}

Watch::Subject Watch::observe(std::function<void(RankState&)> look) {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->looks.insert(impl_->looks.end(), std::move(look));
  return Subject([impl = impl_.get(), at] {
    const std::lock_guard held(impl->mutex);
    impl->looks.erase(at);
  });
}

Watch::Subject Watch::on_hang(std::function<void(const std::string&)> give_up) {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->give_ups.insert(impl_->give_ups.end(), std::move(give_up));
  return Subject([impl = impl_.get(), at] {
    const std::lock_guard held(impl->mutex);
    impl->give_ups.erase(at);
  });
}

void Watch::set_stage(Stage stage) { impl_->stage = stage; }
Stage Watch::stage() const { return impl_->stage; }

void Watch::step_done(int64_t step, double seconds) {
  impl_->step = step;
  if (seconds > impl_->longest_step.load()) impl_->longest_step = seconds;
}

}  // namespace voltapile
