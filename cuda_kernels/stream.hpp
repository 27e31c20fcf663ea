// A lane as a CUDA stream, with a host thread for what must run on the host in the stream's order.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "voltapile/device/device.hpp"

#include "context.hpp"

namespace voltapile::cuda {

class CudaStream final : public Stream {
 public:
  CudaStream(Context& context, Lane lane);
  ~CudaStream() override;

  cudaStream_t handle() const { return stream_; }
  void run_on_host(std::function<void()> work) override;
  Event record();
  void wait(Event event);      // later work waits for another stream's event
  bool done(uint64_t ticket);  // asks the GPU; throws what it failed with
  uint64_t recorded() const { return recorded_; }
  bool host_work_done() const;

 private:
  struct Task {
    cudaEvent_t reached;
    std::function<void()> work;
    uint32_t number;
  };
  cudaEvent_t take_event();
  void retire();  // with mutex_ held: events that have happened go back
  void work();    // the host thread

  Context& context_;
  cudaStream_t stream_ = nullptr;

  mutable std::mutex mutex_;
  std::deque<cudaEvent_t> pending_;  // of tickets completed_ + 1 ... recorded_
  std::vector<cudaEvent_t> free_;
  uint64_t recorded_ = 0, completed_ = 0;

  std::mutex host_mutex_;
  std::condition_variable arrived_;
  std::deque<Task> tasks_;
  std::thread worker_;
  Buffer finished_;  // pinned: the number of the last host task that has run
  uint32_t started_ = 0;
  bool stopping_ = false;
};

inline cudaStream_t handle_of(Stream& stream) { return static_cast<CudaStream&>(stream).handle(); }

}  // namespace voltapile::cuda
