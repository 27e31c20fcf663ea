// Private to train: writes checkpoints on a thread of its own while training goes on.
#pragma once
#include <atomic>
#include <exception>
#include <filesystem>
#include <thread>

#include "run_state.hpp"

namespace voltapile {

// The same calls on every rank, in the same order. Training stalls for the copy of the state into
// host memory alone, which is allocated once and kept. Destroyed while a save is under way, it
// waits for its end.
class Saver {
 public:
  struct Saved {
    std::filesystem::path folder;
    int64_t step = 0;
    double stall_seconds = 0, seconds = 0;  // training stood still; until the checkpoint was whole
  };

  // `link`: a communicator of all ranks that nothing else uses.
  Saver(RankContext& context, Communicator& link, std::filesystem::path checkpoints)
      : context_(context), link_(link), checkpoints_(std::move(checkpoints)) {}
  ~Saver();

  const std::filesystem::path& checkpoints() const { return checkpoints_; }
  // Copies the state; every lane must be idle, and no save under way. May fail on one rank alone.
  void copy();
  // Writes what copy() took as the checkpoint of `run`.
  void start(const RunState& run, const Keep& keep);
  // Between start() and finish().
  bool under_way() const { return thread_.joinable(); }
  // Whether finish() would not wait; a fault counts as an end.
  bool ended() const { return ended_; }
  bool failed() const { return ended_ && fault_ != nullptr; }
  // What a failed save came to, where all ranks learn of it; else empty.
  std::string fault() const;
  // The save under way, once it is whole; else null.
  const Saved* saved() const {
    return under_way() && ended_ && fault_ == nullptr ? &saved_ : nullptr;
  }
  // How long the save under way has taken so far, or took; 0 without one.
  double seconds() const;
  // Waits for the save under way. A fault is a SharedError, thrown by every rank alike; the
  // checkpoint before it is whole, and another save may begin.
  Saved finish();

 private:
  RankContext& context_;
  Communicator& link_;
  std::filesystem::path checkpoints_;
  StagedState staged_;
  std::thread thread_;
  std::atomic<bool> ended_ = false;
  std::exception_ptr fault_;  // written before ended_
  Saved saved_;
  double began_ = 0;
};

}  // namespace voltapile
