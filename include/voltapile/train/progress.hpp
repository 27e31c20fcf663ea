// What a person watches: a bar on a terminal, plain lines in a file.
#pragma once
#include <cstdint>
#include <string>

#include "voltapile/train/metrics.hpp"

namespace voltapile {

// Also right below mpirun, which gives its ranks a pseudo-terminal even when its own output is a
// file.
bool output_is_terminal();

class Progress {
 public:
  Progress(int64_t first_step, int64_t total_steps, int64_t every, bool terminal);
  // `note`: what goes on besides, a few words.
  void show(const TrainRecord& record, const std::string& note = "");
  void finish();  // leaves the bar on its own line

 private:
  int64_t first_, total_, every_;
  bool terminal_, drawn_ = false;
  double seconds_ = 0, last_drawn_ = 0;
  int64_t steps_ = 0;
};

}  // namespace voltapile
