// What one rank is doing, as it tells the others several times a second.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace voltapile {

enum class Stage : uint8_t { start, first_step, training, evaluation, checking, saving, ending };
std::string_view name_of(Stage stage);

// The instruction that a lane is at: the first one that has not ended.
struct LaneState {
  std::string lane;         // "dp"
  std::string what;         // "reduce_gradients(chunk 3)"
  int64_t step = 0;         // of the run, from 1; of evaluation, its batch
  bool begun = false;       // else it waits for another lane of its rank
  bool for_others = false;  // the instruction communicates
  bool operator==(const LaneState&) const = default;
};

// Of one communicator: how many calls this rank has begun and ended, and the last one's name.
struct CallState {
  std::string communicator;  // "dp(pp0 tp0)": the same text on each of its ranks, and on no other
  std::string call;          // "all_reduce"
  uint64_t begun = 0, ended = 0;
  bool operator==(const CallState&) const = default;
};

struct RankState {
  Stage stage = Stage::start;
  int64_t step = 0;            // steps done
  double stalled_seconds = 0;  // since anything below or above last changed
  uint64_t bytes = 0;          // read and written by the process, small amounts left out
  bool answers = false;        // to a watch that asks
  std::vector<LaneState> lanes;
  std::vector<CallState> calls;

  // Whether work has gone on from `before` to this.
  bool moved_since(const RankState& before) const;
};

// As text of some hundred bytes. read_rank_state gives nothing for what write_rank_state did not
// write.
std::string write_rank_state(const RankState& state);
std::optional<RankState> read_rank_state(const std::string& text);

}  // namespace voltapile
