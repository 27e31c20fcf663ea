// metrics.jsonl is the truth, one line a step, flushed; metrics.h5 is published from it by
// write-aside and rename, at most every 10 s and at the end, so plain h5py never meets a locked or
// torn file.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>

namespace voltapile {

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

class Metrics {
 public:
  // Opens or continues run_dir/metrics.jsonl; lines of steps beyond `resume_step` (left by a killed
  // run) and a torn last line are cut off. Rank 0 only.
  Metrics(const std::filesystem::path& run_dir, int64_t resume_step);
  ~Metrics();  // publishes
  void add(const TrainRecord&);
  void add(const EvalRecord&);
  void publish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace voltapile
