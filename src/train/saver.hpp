// Private to train: writes checkpoints on a thread of its own while training goes on.
#pragma once
#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <thread>

#include "run_state.hpp"
#include "state_pool.hpp"

namespace voltapile {

// The same calls on every rank, in the same order. State on the device is copied into host memory
// while training stands still. State on the host or on nvme stays where it is: the next step's
// updates wait for as much of it as checkpoint.pool does not hold (StatePool). Memory is allocated
// once and kept. Destroyed while a save is under way, it waits for its end.
class Saver {
 public:
  struct Saved {
    std::filesystem::path folder;
    int64_t step = 0;
    double seconds = 0;         // until the checkpoint was whole, or given up
    double stall_seconds = 0;   // training stood still
    double update_seconds = 0;  // updates waited, while other work may have gone on
  };

  // `link`: a communicator of all ranks that nothing else uses. `before_write`: StatePool's.
  Saver(RankContext& context, Communicator& link, std::filesystem::path checkpoints,
        std::function<void()> before_write)
      : context_(context),
        link_(link),
        checkpoints_(std::move(checkpoints)),
        before_write_(std::move(before_write)) {}
  ~Saver();

  const std::filesystem::path& checkpoints() const { return checkpoints_; }
  // Takes the pool's memory, so that no save does; may fail on one rank alone.
  void reserve();
  // Copies the state, where it is on the device; every lane must be idle, and stay so until
  // start(), and no save under way. May fail on one rank alone.
  void prepare();
  // Writes the state as it is now as the checkpoint of `run`.
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
  bool copies_all() const { return context_.plan().deck.memory.optimizer == Home::device; }
  std::filesystem::path write(const RunState& run, const Keep& keep);

  RankContext& context_;
  Communicator& link_;
  std::filesystem::path checkpoints_;
  const std::function<void()> before_write_;
  StagedState staged_;  // of state on the device
  RankPieces pieces_;   // of other state
  Buffer pool_;
  std::thread thread_;
  std::atomic<bool> ended_ = false;
  std::exception_ptr fault_;  // written before ended_
  Saved saved_;
  double began_ = 0;
};

}  // namespace voltapile
