// Private to watch: writes what this rank is at into a file, on a thread of its own, since the disk
// may be what hangs.
#pragma once
#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "voltapile/watch/rank_state.hpp"

namespace voltapile::watch {

class Dump {
 public:
  // Without a file nothing is written.
  void start(const std::filesystem::path& file, const std::string& place, const RankState& state);
  bool ended() const { return progress_ == nullptr || progress_->ended.load(); }
  // A line for the report: where the files are, or why there are none.
  std::string outcome() const;

 private:
  struct Progress {
    std::atomic<bool> ended{false};
    std::mutex mutex;
    std::string fault;
  };
  std::filesystem::path file_;
  std::shared_ptr<Progress> progress_;
};

// Bytes that this process has read and written, in files and elsewhere; 0 where the kernel does not
// say.
uint64_t process_bytes();

}  // namespace voltapile::watch
