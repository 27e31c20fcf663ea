// All NCCL communicators of the process, and the thread that ends them when anything fails.
#pragma once
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "voltapile/comm/communicator.hpp"

#include "context.hpp"

namespace voltapile::cuda {

// One rank's end of an NCCL communicator. Shared by its owner, the watch, and the graphs that hold
// its collectives: NCCL frees nothing while such a graph lives.
class NcclEnd : public std::enable_shared_from_this<NcclEnd> {
 public:
  NcclEnd(ncclComm_t comm, Context& context, Communicator& host);

  ncclComm_t comm() const { return comm_; }
  bool aborted() const { return aborted_.load(); }
  // "all_reduce of 'dp(pp0 tp0)' on rank 5 (pp1 dp0 tp1)"
  std::string label() const;
  void set_label(const char* call, const std::string& name, const std::string& place);

  // Around the enqueueing of one call on `stream`. A call outside of a recording is now and then
  // measured: its begin and its end are events that the watch looks at.
  void begin_call(cudaStream_t stream);
  void end_call(cudaStream_t stream);
  // The owner goes; what it enqueued may still run.
  void record_last(cudaStream_t stream);

 private:
  friend class NcclWatch;
  using Clock = std::chrono::steady_clock;
  enum class Measuring { nothing, being_enqueued, running };

  void hold_by(cudaGraph_t graph);
  void enter() const { cudaSetDevice(gpu_); }  // or another GPU gets a context of this process
  bool is_quiet() const;                       // nothing that it enqueued runs any more
  void free_events();

  const ncclComm_t comm_;
  Context* const context_;  // until the owner goes, as the next; then only a name for its rank
  Communicator* const host_;
  const int gpu_;
  bool retired_ = false, doomed_ = false;  // guarded by the watch
  std::atomic<bool> aborted_{false};
  std::atomic<int> graphs_{0};
  unsigned long long last_recording_ = 0;

  cudaEvent_t begun_ = nullptr, ended_ = nullptr, last_ = nullptr;
  bool last_recorded_ = false;
  std::atomic<Measuring> measuring_{Measuring::nothing};
  std::optional<Clock::time_point> running_since_;  // the watch's

  mutable std::mutex names_;  // guards the next four
  const char* call_ = "use";
  const char* measured_ = "use";
  std::string name_, place_;
};

class NcclWatch {
 public:
  // One of the process; it ends with it.
  static NcclWatch& instance();
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  void set_limit(double seconds);
  double limit_seconds() const;
  std::shared_ptr<NcclEnd> add(ncclComm_t comm, Context& context, Communicator& host);
  // Its owner is gone: destroyed once nothing needs it any more. Touches neither the device nor the
  // host's communicator from now on.
  void retire(const std::shared_ptr<NcclEnd>& end);
  // Looks at once whether something has failed.
  void wake();

 private:
  NcclWatch() = default;
  struct Impl;
  static std::shared_ptr<Impl> make_impl();
  std::shared_ptr<Impl> impl_ = make_impl();
};

// Throws Error(failure) with NCCL's own words.
void check_nccl(ncclResult_t code, const std::string& what);

}  // namespace voltapile::cuda
