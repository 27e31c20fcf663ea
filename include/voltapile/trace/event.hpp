// What the recorder writes down: one row an instruction, and what the host's thread did besides.
// Times are nanoseconds since 1970 on rank 0's clock.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "voltapile/schedule/timeline.hpp"
#include "voltapile/trace/gpu_sample.hpp"

namespace voltapile {

// Names beyond Op's, on the lane kMainLane: what the thread does that issues steps.
enum class HostWork : int32_t {
  data_wait = kOpCount,  // for the loader's batch
  issue,                 // enqueueing a step's instructions
  step_wait,             // for a step's norm
  evaluate,              // between two steps
  save,                  // copying a checkpoint's state, and waiting for the save before it
  publish,               // writing trace.h5, or handing rows to rank 0
  step,                  // from the end of the step before to the end of this one: its wall time
};
inline constexpr int kEventNames = static_cast<int>(HostWork::step) + 1;
inline constexpr int kMainLane = kLaneCount;
inline constexpr int kEventLanes = kMainLane + 1;
std::string_view event_name(int32_t name);  // of an Op or a HostWork
std::string_view event_lane(int32_t lane);

struct TraceEvent {
  int32_t name = 0, lane = 0;
  int32_t chunk = -1, micro = -1;  // -1: of none
  int64_t step = 0;                // from 1, as in metrics.jsonl
  int64_t begin_ns = 0, end_ns = 0;
  int64_t bytes = 0;
  double flops = 0;
  bool operator==(const TraceEvent&) const = default;
};

struct MemoryRow {
  int64_t time_ns = 0;
  std::string name;  // of a line of the plan's memory table, or "allocated", "driver and libraries"
  int64_t bytes = 0;
  int32_t on_host = 0;  // 1: host memory or disk
  bool operator==(const MemoryRow&) const = default;
};

// Of one rank's process and its machine, at a step's end; counters since start.
struct HostSample {
  int64_t rank = 0, step = 0, time_ns = 0;
  int64_t resident_bytes = 0;
  double cpu_seconds = 0;                      // of the process, user and system
  int64_t read_bytes = 0, written_bytes = 0;   // by the process, that reached storage
  int64_t received_bytes = 0, sent_bytes = 0;  // by the machine's network devices but loopback
  bool operator==(const HostSample&) const = default;
};
// Reads /proc; what the system does not tell is 0. The caller sets rank, step and time_ns.
HostSample read_host_sample();

// What one rank hands over at a time.
struct RankRecord {
  std::string place, host;    // "rank 5 (pp1 dp0 tp1)"
  std::string device;         // as Device::describe() says; empty in files of earlier versions
  int64_t clock_skew_ns = 0;  // its clock agrees with rank 0's within this
  std::vector<TraceEvent> events;
  std::vector<MemoryRow> memory;
  std::vector<HostSample> samples;
  std::vector<GpuSample> gpu_samples;  // of the rank that speaks for its GPU
  bool operator==(const RankRecord&) const = default;
};
// As bytes, for another rank of the same program.
std::vector<std::byte> pack(const RankRecord& record);
RankRecord unpack(const std::vector<std::byte>& bytes);

}  // namespace voltapile
