// metrics.jsonl is the truth, one line a step; metrics.h5 is published from it by write-aside and
// rename, so plain h5py never meets a locked or torn file. Numbers that are not finite are null in
// the lines and NaN in the datasets.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace voltapile {

// metrics.h5 is at most this old, plus one step.
inline constexpr std::chrono::seconds kPublishInterval{10};

struct TrainRecord {
  int64_t step = 0;  // steps done after this one, from 1
  double loss = 0, learning_rate = 0, grad_norm = 0, loss_scale = 1, samples_per_second = 0,
         seconds = 0;
  bool skipped = false;
};
struct EvalRecord {
  int64_t step = 0;
  double loss = 0, top1 = 0, top5 = 0;
  int64_t samples = 0;
};

// A run that diverged went back.
struct RewindRecord {
  int64_t step = 0;       // to here
  int64_t from_step = 0;  // the last step that had been done
  int64_t rewinds = 0;    // of the run so far, this one included
  std::string cause;
};

// All whole lines of run_dir/metrics.jsonl, in their order; nothing where there is no such file.
struct MetricLines {
  std::vector<TrainRecord> train;
  std::vector<EvalRecord> eval;
  std::vector<RewindRecord> rewinds;
};
MetricLines read_metrics(const std::filesystem::path& run_dir);
// Newest train step in run_dir/metrics.jsonl; 0 where there is none.
int64_t last_recorded_step(const std::filesystem::path& run_dir);

// What add() makes of a line that cannot be written: an Error, or a warning, and the line waits in
// memory for the next call.
enum class LineFault { ends_run, waits };

// Rank 0 only, from one thread. Error(failure) names the file that could not be written.
class Metrics {
 public:
  // Opens or continues run_dir/metrics.jsonl, and publishes. Lines of steps beyond `resume_step`
  // (left by a killed run) and a torn last line are cut off.
  Metrics(const std::filesystem::path& run_dir, int64_t resume_step,
          LineFault on_fault = LineFault::ends_run);
  ~Metrics();  // publishes; a fault is logged
  // Appends a line in one write, and publishes when that is due.
  void add(const TrainRecord&);
  void add(const EvalRecord&);
  void add(const RewindRecord&);
  // Syncs the lines to the disk and renews metrics.h5. Worth a call before a checkpoint: after a
  // power failure the lines then reach as far as the checkpoint does.
  void publish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace voltapile
