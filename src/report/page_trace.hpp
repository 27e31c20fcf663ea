// Private to report: the recorded steps for the page's script.
#pragma once
#include <nlohmann/json.hpp>

#include "voltapile/plan/plan.hpp"
#include "voltapile/trace/trace_file.hpp"

namespace voltapile {

// {names, lanes, kinds: [[name, lane, chunk, micro, bytes, flops]...], drawn, of, last_step,
//  last_of, saved: [bytes by chunk], ranks: [{place, host, steps: [[step, kind, begin, length,
//  ...]...]}]}.
// Times are tenths of microseconds; a begin counts from the one before it, the first of a rank from
// the trace's. Of more than kMostDrawn events the last steps are left out (last_step < last_of),
// and if one step has more, the last ranks (drawn < of).
inline constexpr size_t kMostDrawn = 80'000;
nlohmann::json lanes_data(const Trace& trace, const Plan& plan);
// {layers: [name...], ranks: [place...], seconds: [[of layer][of rank]...], bytes}: of a step. A
// chunk's seconds are divided over its layers by FLOPs, its bytes by parameters. At most 64 ranks.
nlohmann::json heat_data(const Trace& trace, const Plan& plan);
// [{place, rows: [[name, bytes, on_host]...]}...]: one rank of each pipeline coordinate.
nlohmann::json memory_data(const Trace& trace);
// [{place, seconds: [...], resident: [...]}...] of at most 64 ranks.
nlohmann::json samples_data(const Trace& trace);
// [{place, seconds: [...], and as many of busy, sms, tensor, occupancy, bandwidth (shares), memory,
// watts, celsius and sm_clock}...]: of GPUs that were sampled, seconds from the first sample of
// all; null where one is unknown. Of more samples than a screen has columns, every n-th.
nlohmann::json gpus_data(const Trace& trace);

}  // namespace voltapile
