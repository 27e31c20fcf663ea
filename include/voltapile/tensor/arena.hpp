// Named memory of one rank, on its device and its host, laid out by the plan and allocated before
// the first step: the slots of the plan's buffer pools. Nothing is allocated after it.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "voltapile/device/device.hpp"
#include "voltapile/plan/plan.hpp"

namespace voltapile {

class Arena {
 public:
  // One allocation a pool; slots are 256-byte aligned, those on the host to pages of 4096.
  // Error(does_not_fit) names the pool. State at home on the host is touched by the threads of
  // `host`. `buffers` must outlive the Arena.
  Arena(Device& device, const BufferPlan& buffers, ThreadPool& host);
  // The same memory under another phase's plan (evaluation), whose slots must be the same.
  Arena(const Arena& memory, const BufferPlan& buffers);

  // Memory of the slot that holds (value, chunk, micro); throws if the plan gave it none. Null
  // where the slot has no bytes. Gradients reduced in place: `reduced` is the memory of
  // `gradients`.
  std::byte* at(Value value, int chunk, int micro) const;
  // -1 if the plan gave it none.
  int slot(Value value, int chunk, int micro) const;
  size_t bytes() const;

 private:
  using Pools = std::vector<std::vector<std::byte*>>;  // slots by Value

  const BufferPlan* plan_;
  std::shared_ptr<const Pools> slots_;
  std::shared_ptr<const std::vector<Buffer>> storage_;  // one per pool
};

}  // namespace voltapile
