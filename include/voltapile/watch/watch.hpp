// A watch over a job that may hang. One thread a rank, beside everything else; it never waits for
// MPI, a device or a file.
//
// Each rank tells its state (rank_state.hpp) four times a second or so to two watchers: the first
// rank and the last; those tell theirs to everybody. Time is counted in looks of this thread, so
// that a process, or a whole job, that was suspended and goes on has not stood still. The first
// watcher that is heard judges. It reports when nothing that it hears of has moved for the limit:
// it asks every rank to write its state and the stacks of its threads into a file, gives them a few
// seconds, says which rank differs, and ends the job. Silence alone ends nothing: where no datagram
// arrives, each rank judges for itself, after five times the limit, and cannot name a rank.
//
// A rank whose process has ended without a word (its watch says when it leaves) is named at once.
// The launcher ends the job then; should it not, the watch does.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/watch/rank_state.hpp"

namespace voltapile {

// run.hang_timeout. Empty is "auto": 20 times the longest step so far, and at least a minute; half
// an hour where no step is measured (start, first step, evaluation, saving, end) and at least 20
// steps. A given time is for training; there it counts ten times. While the state of some rank says
// that it is saving, no rank is measured.
using HangTimeout = std::optional<double>;
double hang_limit_seconds(Stage stage, HangTimeout timeout, double longest_step_seconds);

struct HangReport {
  std::string details;  // some lines: where the ranks are
  std::string verdict;  // one sentence: who holds up the job
};

struct WatchOptions {
  // Prints the report, the verdict last, and ends every rank of the job with exit code 5; does not
  // return. Where ranks are threads of one process: none, and the communicators are aborted.
  std::function<void(const HangReport& report)> end_job;
  // Prints one line: a rank is gone.
  std::function<void(const std::string& line)> say;
};

class Watch {
 public:
  // Collective over `world`, which must outlive it. prepare_thread_stacks() is called.
  Watch(Communicator& world, WatchOptions options);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void set_timeout(HangTimeout timeout);
  // How messages call the ranks, from now on: "rank 5 (pp1 dp0 tp1)".
  void set_places(std::vector<std::string> places);
  // Where ranks write what they are at: <folder>/rank_00005.txt. Nothing is written before.
  void set_folder(const std::filesystem::path& folder);

  // While the result lives, `look` adds to this rank's state, and `give_up` is called by this
  // rank's watch before a job of threads is ended; both from the watch's thread, and not while the
  // result is destroyed.
  class Subject {
   public:
    Subject() = default;
    explicit Subject(std::function<void()> release) : release_(std::move(release)) {}
    ~Subject() {
      if (release_) release_();
    }
    Subject(Subject&& other) noexcept : release_(std::exchange(other.release_, nullptr)) {}
    Subject& operator=(Subject&& other) noexcept {
      std::swap(release_, other.release_);
      return *this;
    }

   private:
    std::function<void()> release_;
  };
  [[nodiscard]] Subject observe(std::function<void(RankState&)> look);
  [[nodiscard]] Subject on_hang(std::function<void(const std::string& verdict)> give_up);

  void set_stage(Stage stage);
  Stage stage() const;
  void step_done(int64_t step, double seconds);  // seconds 0: not to be measured

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Until its end, a rank is in another stage than before.
class StageScope {
 public:
  StageScope(Watch& watch, Stage stage) : watch_(watch), before_(watch.stage()) {
    watch.set_stage(stage);
  }
  ~StageScope() { watch_.set_stage(before_); }
  StageScope(const StageScope&) = delete;
  StageScope& operator=(const StageScope&) = delete;

 private:
  Watch& watch_;
  Stage before_;
};

// The calls of a communicator, for look.
void add_calls(const Communicator& communicator, RankState& state);

}  // namespace voltapile
