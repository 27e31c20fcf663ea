#include "voltapile/watch/rank_state.hpp"

#include <sstream>

#include "voltapile/base/format.hpp"

namespace voltapile {

std::string_view name_of(Stage stage) {
  switch (stage) {
    case Stage::start: return "starting";
    case Stage::first_step: return "in the first step";
    case Stage::training: return "training";
    case Stage::evaluation: return "evaluating";
    case Stage::checking: return "checking";
    case Stage::saving: return "saving";
    case Stage::ending: return "ending";
  }
  return "?";
}

bool RankState::moved_since(const RankState& before) const {
  return stage != before.stage || step != before.step || bytes != before.bytes ||
         lanes != before.lanes || calls != before.calls;
}

// A line each, its free text last.
std::string write_rank_state(const RankState& state) {
  std::string text = format("{} {} {:.3f} {} {}\n", static_cast<int>(state.stage), state.step,
                            state.stalled_seconds, state.bytes, state.answers ? 1 : 0);
  for (const LaneState& lane : state.lanes)
    text += format("lane {} {} {} {} {}\n", lane.lane, lane.step, lane.begun ? 1 : 0,
                   lane.for_others ? 1 : 0, lane.what);
  for (const CallState& call : state.calls)
    text += format("call {} {} {} {}\n", call.begun, call.ended, call.call, call.communicator);
  return text;
}

std::optional<RankState> read_rank_state(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  RankState state;
  int stage = 0;
  if (!std::getline(lines, line)) return std::nullopt;
  std::istringstream head(line);
  head >> stage >> state.step >> state.stalled_seconds >> state.bytes >> state.answers;
  if (!head || stage < 0 || stage > static_cast<int>(Stage::ending)) return std::nullopt;
  state.stage = static_cast<Stage>(stage);
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "lane") {
      LaneState& lane = state.lanes.emplace_back();
      words >> lane.lane >> lane.step >> lane.begun >> lane.for_others >> std::ws;
      std::getline(words, lane.what);
    } else if (kind == "call") {
      CallState& call = state.calls.emplace_back();
      words >> call.begun >> call.ended >> call.call >> std::ws;
      std::getline(words, call.communicator);
    } else {
      return std::nullopt;
    }
    if (!words) return std::nullopt;
  }
  return state;
}

}  // namespace voltapile
