// Private to watch: what this rank has heard of the others.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "voltapile/watch/diagnosis.hpp"

namespace voltapile::watch {

class Bystanders {
 public:
  explicit Bystanders(int ranks) : all_(static_cast<size_t>(ranks)) {}

  Witness& at(int rank) { return all_[static_cast<size_t>(rank)]; }
  const Witness& at(int rank) const { return all_[static_cast<size_t>(rank)]; }
  const std::vector<Witness>& all() const { return all_; }

  void heard(int rank, const RankState& state) {
    Witness& witness = at(rank);
    witness.known = true;
    witness.silent_seconds = 0;
    witness.state = state;
  }
  void pass(double seconds) {
    for (Witness& witness : all_) witness.silent_seconds += seconds;
  }
  bool is_heard(int rank, double patience_seconds) const {
    return at(rank).known && at(rank).silent_seconds < patience_seconds;
  }
  // Whether one that is heard says that it is saving.
  bool any_saves(double patience_seconds) const {
    return std::any_of(all_.begin(), all_.end(), [&](const Witness& witness) {
      return witness.known && witness.silent_seconds < patience_seconds &&
             witness.state.stage == Stage::saving;
    });
  }
  // The least time that a rank which is heard has stood still.
  double stalled_seconds(double patience_seconds, double own) const {
    for (const Witness& witness : all_)
      if (witness.known && witness.silent_seconds < patience_seconds)
        own = std::min(own, witness.state.stalled_seconds);
    return own;
  }

 private:
  std::vector<Witness> all_;
};

}  // namespace voltapile::watch
