// What a run folder tells: metrics, trace and checkpoints, as tables for a terminal, a Perfetto
// file and a page. Reads only, so it may look at a run that is at work.
#pragma once
#include <array>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "voltapile/deck/hardware.hpp"
#include "voltapile/plan/plan.hpp"
#include "voltapile/trace/trace_file.hpp"
#include "voltapile/train/metrics.hpp"

namespace voltapile {

// One operation in the recorded steps, all ranks together.
struct OperationShare {
  int32_t name = 0;
  int64_t count = 0;
  double seconds = 0, longest_seconds = 0;
  double flops = 0, bytes = 0;
};

// One rank in the recorded steps. Shares are of the wall time between its first traced instruction
// and the end of its last traced step.
struct RankShare {
  std::string place, host;
  double wall_seconds = 0;
  std::array<double, kEventLanes> busy{};  // of each lane; main: waiting for data, issuing
  double exposed_reduction = 0;  // gradients or weights on their way over the data axis while
                                 // nothing is computed
  double pipeline_wait = 0;      // a receive is waited for while nothing is computed
  double optimizer = 0;          // `update`, on whatever lane, while no layer is computed
  double data_wait = 0, issue = 0;
  double covered = 0;  // some lane, or the main thread's work, accounts for this share
  double compute_seconds = 0, compute_flops = 0;  // forward, recompute, backward
};

struct Analysis {
  int64_t first_step = 0, end_step = 0;    // [first, end)
  double step_seconds = 0;                 // wall time of a recorded step, mean
  std::vector<OperationShare> operations;  // longest first
  std::vector<RankShare> ranks;
  double compute_busy = 0, coverage = 0;  // mean and least over ranks
  // Medians over the recorded steps, means over ranks. Empty where the updates that the one
  // recorded step waits for are not in the trace.
  std::optional<double> bubble, exposed_optimizer;
  // Of simulate()'s steady state, fed with the measured times of each of the last steps: medians.
  double bubble_simulated = 0, exposed_optimizer_simulated = 0;
  bool waits_for_updates() const {
    return exposed_optimizer.value_or(0) > 0 || exposed_optimizer_simulated > 0;
  }
  std::optional<double> bubble_formula;  // with the measured times
  std::vector<double> chunk_seconds;     // by chunk: compute of one micro-batch, forward to weights
  // Transfers between ranks: a receive that ends before its send began would be a clock's fault.
  int64_t transfers = 0, impossible_transfers = 0;
  double skew_seconds = 0;            // what the trace states
  double longest_notice_seconds = 0;  // between a receive's end and its send's
};
// Error(bad_data) when the trace is not of this plan.
Analysis analyse(const Trace& trace, const Plan& plan);

struct Advice {
  std::string rule;      // "bubble", "loader", ...
  std::string title;     // one line
  std::string evidence;  // with its numbers
  std::string key;       // the deck's key, or the option of another command
  std::string change;    // what to set it to
  double gain = 0;       // expected, as a share of the step's time; 0: not in time
};

// Everything that is known of a run.
struct Run {
  std::filesystem::path folder;
  std::string name;
  Plan plan;  // of the trace's deck, or else the folder's
  MetricLines metrics;
  std::optional<Trace> trace;        // all that was recorded
  std::optional<Trace> window;       // its last steps without a gap, which are looked at
  std::optional<Analysis> analysis;  // of the window
  std::optional<std::filesystem::path> checkpoint;  // latest
  int64_t checkpoint_step = 0;
  std::vector<Advice> advice;        // largest gain first
  std::optional<Hardware> hardware;  // whose measured rate arithmetic is compared with
};
// Error(bad_input) when the folder holds no run; Error(bad_data) for a damaged file.
Run read_run(const std::filesystem::path& folder);

// The terminal's page; no line is wider than `columns` where names allow it. Two runs: side by
// side.
std::string describe(const Run& run, int columns = 100);
std::string compare(const Run& a, const Run& b);

// Trace event format, as ui.perfetto.dev and chrome://tracing open it: a process a rank, a thread a
// lane, arrows from sends to their receives, resident memory as a counter. Published whole.
void write_perfetto(const Trace& trace, const std::filesystem::path& path);

// One self-contained HTML file: no network, no other file. One run, or two to compare.
std::string page(const std::vector<Run>& runs);

// Prints the report whenever metrics.jsonl has grown, until the run is finished or `stop` says so.
void follow(const std::filesystem::path& folder, std::ostream& out, bool terminal,
            const std::function<bool()>& stop);

}  // namespace voltapile
