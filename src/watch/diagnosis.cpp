#include "voltapile/watch/diagnosis.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "voltapile/base/format.hpp"
#include "voltapile/watch/fingerprint.hpp"

namespace voltapile {

namespace {

using Ranks = std::vector<int>;

constexpr size_t kMostLines = 16;

const Witness& at(const std::vector<Witness>& all, int rank) {
  return all[static_cast<size_t>(rank)];
}

bool is_under_way(const CallState& call) { return call.begun > call.ended; }

// "the all_reduce of 'norm' (its call 812)"; empty where no call is under way.
std::string call_of(const RankState& state) {
  for (const CallState& call : state.calls)
    if (is_under_way(call))
      return format("{} of '{}', its call {}", call.call, call.communicator, call.begun);
  return {};
}

// What a rank is at, to be read after "is".
std::string position_of(const RankState& state) {
  std::string text;
  const auto add = [&text](const LaneState& lane) {
    text += format("{}{} of step {}", text.empty() ? "in " : ", ", lane.what, lane.step);
  };
  for (const LaneState& lane : state.lanes)
    if (lane.begun) add(lane);
  if (text.empty() && !state.lanes.empty()) {
    const auto first =
        std::min_element(state.lanes.begin(), state.lanes.end(),
                         [](const LaneState& a, const LaneState& b) { return a.step < b.step; });
    text = format("before {} of step {}", first->what, first->step);
  }
  if (text.empty()) text = format("{}, after step {}", name_of(state.stage), state.step);
  const std::string call = call_of(state);
  return call.empty() ? text : format("{} ({})", text, call);
}

// "ranks 0-3, 8"
std::string list(const Ranks& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_ranks(ranks);
}

Ranks those(const std::vector<Witness>& all, const std::function<bool(const Witness&)>& matches) {
  Ranks found;
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank)
    if (at(all, rank).known && matches(at(all, rank))) found.push_back(rank);
  return found;
}

// Whom each rank waits for: those that have not begun the call which it is in.
std::map<int, std::set<int>> waits(const std::vector<Witness>& all) {
  std::map<std::string, std::vector<std::pair<int, const CallState*>>> communicators;
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    if (!at(all, rank).known) continue;
    for (const CallState& call : at(all, rank).state.calls)
      communicators[call.communicator].emplace_back(rank, &call);
  }
  std::map<int, std::set<int>> found;
  for (const auto& [name, members] : communicators) {
    for (const auto& [rank, call] : members) {
      if (!is_under_way(*call)) continue;
      for (const auto& [other, theirs] : members)
        if (theirs->begun < call->begun) found[rank].insert(other);
    }
  }
  return found;
}

Ranks awaited(const std::vector<Witness>& all) {
  const auto graph = waits(all);
  std::set<int> roots;
  for (const auto& [rank, others] : graph)
    for (int other : others)
      if (!graph.contains(other)) roots.insert(other);
  return {roots.begin(), roots.end()};
}

bool communicates(const RankState& state) {
  return std::any_of(state.lanes.begin(), state.lanes.end(),
                     [](const LaneState& lane) { return lane.begun && lane.for_others; }) ||
         std::any_of(state.calls.begin(), state.calls.end(), is_under_way);
}

bool is_some(const Ranks& ranks, const std::vector<Witness>& all) {
  return !ranks.empty() && ranks.size() < all.size();
}

std::string where_the_others_are(const std::vector<Witness>& all, const Ranks& culprits) {
  std::map<std::string, Ranks> groups;
  for (int rank : those(all, [](const Witness&) { return true; }))
    if (!std::binary_search(culprits.begin(), culprits.end(), rank))
      groups[position_of(at(all, rank).state)].push_back(rank);
  if (groups.empty()) return "";
  const auto largest = std::max_element(
      groups.begin(), groups.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  return format("; {} {} {}", list(largest->second), largest->second.size() == 1 ? "is" : "are",
                largest->first);
}

}  // namespace

std::string describe_gone(const Witness& rank) {
  return format(
      "{} on {} is gone: it was killed (perhaps by the system, for memory), or it crashed. "
      "It was last {}",
      rank.place, rank.host, position_of(rank.state));
}

Diagnosis diagnose(const std::vector<Witness>& all) {
  Diagnosis diagnosis;
  std::map<std::string, Ranks> groups;
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    const Witness& witness = at(all, rank);
    std::string text = "has told nothing";
    if (witness.known) text = position_of(witness.state);
    if (witness.known && !witness.answers)
      text = format("no answer for {:.0f} s, then {}", witness.silent_seconds, text);
    groups[text].push_back(rank);
  }
  for (const auto& [text, ranks] : groups) {
    if (diagnosis.lines.size() == kMostLines) {
      diagnosis.lines.push_back(format("and {} more", groups.size() - kMostLines));
      break;
    }
    diagnosis.lines.push_back(format("{}: {}", list(ranks), text));
  }
  std::sort(diagnosis.lines.begin(), diagnosis.lines.end());

  const auto conclude = [&](const Ranks& ranks, const std::string& fault) {
    diagnosis.ranks = ranks;
    const Witness& first = at(all, ranks.front());
    std::string others;
    if (ranks.size() > 1) others = format(" ({} of {} ranks are so)", ranks.size(), all.size());
    diagnosis.verdict = format("{} on {} {}{}{}", first.place, first.host, fault, others,
                               where_the_others_are(all, ranks));
    return diagnosis;
  };
  if (const Ranks silent = those(all, [](const Witness& w) { return !w.answers; });
      is_some(silent, all)) {
    const Witness& first = at(all, silent.front());
    return conclude(silent, format("does not answer for {:.0f} s: it is stopped, or its machine or "
                                   "network is; it was last {}",
                                   first.silent_seconds, position_of(first.state)));
  }
  if (const Ranks roots = awaited(all); is_some(roots, all)) {
    const RankState& state = at(all, roots.front()).state;
    return conclude(roots, format("is waited for, and is itself {}", position_of(state)));
  }
  int64_t most = 0;
  for (const Witness& witness : all) most = std::max(most, witness.state.step);
  if (const Ranks late = those(all, [&](const Witness& w) { return w.state.step < most; });
      is_some(late, all)) {
    const RankState& state = at(all, late.front()).state;
    return conclude(late, format("is behind: {}", position_of(state)));
  }
  if (const Ranks busy = those(all, [](const Witness& w) { return !communicates(w.state); });
      is_some(busy, all)) {
    const RankState& state = at(all, busy.front()).state;
    return conclude(busy, format("is {}, and the others communicate", position_of(state)));
  }
  diagnosis.verdict = "no rank differs from the others: they all wait; is the network at work?";
  if (!all.empty() && all.front().known)
    diagnosis.verdict += format(" {} is {}", all.front().place, position_of(all.front().state));
  return diagnosis;
}

}  // namespace voltapile
