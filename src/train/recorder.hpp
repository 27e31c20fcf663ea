// Private to train: the steps of trace.steps, from the engine's clocks to trace.h5, and what GPUs
// said of themselves over the whole run.
#pragma once
#include <filesystem>
#include <optional>
#include <set>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/plan/costs.hpp"
#include "voltapile/trace/clock_map.hpp"
#include "voltapile/trace/trace_file.hpp"
#include "voltapile/train/engine.hpp"

#include "gpu_sampler.hpp"

namespace voltapile {

// The meetings of this rank's clock with rank 0's. Collective.
std::vector<Meeting> meet(Communicator& control, const std::function<double()>& clock, int rounds);

// The same calls on every rank, in the same order. Steps count from 1, as in metrics.jsonl.
// trace.h5 is published after the first recorded step, then at most once a second (more seldom
// where that would take more than a fiftieth of the time), and after the last one. Samples of GPUs
// go along, and at the end of the run.
class Recorder {
 public:
  // Whether there is anything to record; the same on all ranks.
  static bool is_wanted(const RankContext& context);
  // Collective. `done`: steps done before; `epoch_samples`: pictures to learn from; `control` is
  // used by the calling thread alone.
  Recorder(const RankContext& context, Communicator& control, std::filesystem::path run_dir,
           int64_t done, int64_t epoch_samples);

  // What the calling thread did for `step`.
  void host_work(HostWork what, int64_t step, double begin, double end);
  // `step` was waited for, so the one before it has ended on every lane.
  void step_waited(const Engine& engine, int64_t step);
  // Whether a step is recorded that may be issued before the next one is waited for.
  bool records_soon(int64_t step) const;
  // The engine was drained after `step`, the last one.
  void finish(const Engine& engine, int64_t step);

 private:
  bool records(int64_t step) const { return first_ <= step && step < end_; }
  void take(const Engine& engine, int64_t step);
  void note_memory();
  void set_earlier_aside() const;
  ClockOffset measure_offset();
  RankRecord harvest();
  void publish();

  const RankContext& context_;
  Communicator& control_;
  std::filesystem::path path_;
  int64_t epoch_samples_;
  std::unique_ptr<GpuSampler> sampler_;  // of this rank's GPU
  bool gpus_are_sampled_;                // of some rank
  int64_t first_ = 0, end_ = 0, taken_ = 0, published_step_ = 0;
  std::vector<InstructionCost> costs_;  // by position in the rank's program
  bool one_clock_ = true;               // all ranks read the clock of one machine
  int64_t unix_ns_ = 0;                 // rank 0's now_seconds() to time since 1970
  ClockOffset first_offset_;
  double published_at_ = 0, publishing_seconds_ = 0;

  // Seconds of this rank's clock, until they are published.
  struct Row {
    TraceEvent event;
    double begin, end;
  };
  std::vector<Row> rows_, waiting_;  // of steps that are complete, of others
  std::vector<HostSample> samples_;  // time_ns still by this rank's clock
  std::vector<MemoryRow> memory_;    // likewise
};

}  // namespace voltapile
