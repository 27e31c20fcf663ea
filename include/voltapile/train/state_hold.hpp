// Keeps the state of chunks as it is while a checkpoint is taken of it. Thread-safe.
#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

namespace voltapile {

class StateHold {
 public:
  // No lane may be changing them, nor any chunk be held.
  void begin(const std::vector<int>& chunks);
  // The checkpoint needs the chunk's state at its home no longer.
  void release(int chunk);
  // Nor that of any: it has all, or it failed.
  void release_all();

  // Before a chunk's state is changed: blocks while it is held.
  void wait(int chunk);

  // The chunk that somebody waits for, if any.
  std::optional<int> awaited() const;
  // How long wait() has blocked since begin(), a wait that goes on included.
  double waited_seconds() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::set<int> held_;
  std::optional<int> awaited_;
  double waited_ = 0, waits_since_ = 0;  // the second while awaited_
};

}  // namespace voltapile
