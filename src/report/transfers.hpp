// Private to report: which receive belongs to which send.
#pragma once
#include <vector>

#include "voltapile/plan/plan.hpp"
#include "voltapile/trace/trace_file.hpp"

namespace voltapile {

struct MatchedTransfer {
  int from = 0, to = 0;  // world ranks
  const TraceEvent* send = nullptr;
  const TraceEvent* receive = nullptr;
};
// Of a step that was traced on both ranks. Points into `trace`.
std::vector<MatchedTransfer> match_transfers(const Trace& trace, const Plan& plan);

}  // namespace voltapile
