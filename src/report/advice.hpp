// Private to report: what a run's figures say about its deck.
#pragma once
#include <string>
#include <vector>

#include "voltapile/report/report.hpp"

namespace voltapile {

// What the rules look at, apart from where it came from. Shares are of a step's wall time, means
// over ranks; 0 where no step was traced.
struct Facts {
  bool traced = false;
  // Mesh and schedule
  int pipeline = 1, data = 1, tensor = 1;
  std::string schedule;
  int chunks = 1;           // per pipeline rank
  int64_t most_chunks = 1;  // that the blocks allow
  int micros = 1;
  int64_t micro = 1, global = 1, tokens = 1;
  Pool pool = Pool::mean;
  DType type = DType::f32;
  DeviceKind device = DeviceKind::cpu;
  // Shares
  double bubble = 0, exposed_reduction = 0, data_wait = 0, optimizer = 0, issue = 0, recompute = 0,
         compute_busy = 0;
  // Of all GPUs, by their driver: a kernel runs; SMs that have work. NaN where it is not known.
  double gpu_busy = GpuSample::kUnknown, sm_activity = GpuSample::kUnknown;
  int workers = 1;
  int zero = 0;
  bool gradients_reduced_in_f32 = false;  // though the working type is half as wide
  // Memory; 0: the deck sets no limit, or nothing is recomputed
  double device_limit = 0, device_bytes_without_recompute = 0;
  // Ranks: compute seconds for each FLOP, host
  struct RankSpeed {
    std::string place, host;
    double seconds_per_flop = 0;
  };
  std::vector<RankSpeed> speeds;
  std::vector<std::string> split_tensor_groups;  // "rank 0 (...) on a, rank 1 (...) on b"
  // The run so far
  std::vector<double> loss_scales;  // of the last steps, oldest first; empty unless dynamic
  int64_t skipped = 0, steps = 0;   // of these last steps
};
inline constexpr size_t kScaleWindow = 200;

Facts facts_of(const Run& run);
// Largest gain first.
std::vector<Advice> advise(const Facts& facts);

}  // namespace voltapile
