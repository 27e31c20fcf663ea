// Which rank holds up a job that does not go on, from what is known of each.
#pragma once
#include <string>
#include <vector>

#include "voltapile/watch/rank_state.hpp"

namespace voltapile {

struct Witness {
  std::string place;  // "rank 5 (pp1 dp0 tp1)"
  std::string host;
  bool known = false;    // has ever told its state
  bool answers = false;  // tells it now
  bool gone = false;     // its process has ended without a word
  double silent_seconds = 0;
  RankState state;  // the last that it told
};

struct Diagnosis {
  std::vector<int> ranks;          // that hold up the others; empty where none differs
  std::vector<std::string> lines;  // where everybody is, ranks with the same state together
  std::string verdict;             // one sentence, with the first of them, its host, and the others
};

// In this order: ranks that do not answer; ranks that others wait for in a call of a communicator
// and that wait for nobody; ranks that have done fewer steps; ranks that do not communicate while
// others do.
Diagnosis diagnose(const std::vector<Witness>& ranks);

// "rank 5 (pp1 dp0 tp1) on node7 is gone: ..."
std::string describe_gone(const Witness& rank);

}  // namespace voltapile
