// Named device memory of one rank, laid out by the plan and allocated before the first step: a slot
// per line of the plan's buffer pools, plus named single buffers. Nothing is allocated after it.
#pragma once
#include <string>
#include <vector>

#include "voltapile/device/device.hpp"
#include "voltapile/plan/plan.hpp"

namespace voltapile {

class Arena {
 public:
  Arena(Device& device, const BufferPlan& buffers);
  // Memory of the slot that holds (value, chunk, micro); throws if the plan gave it none.
  std::byte* at(Value value, int chunk, int micro) const;
  // Throws if the plan gave it none.
  int slot(Value value, int chunk, int micro) const;
  size_t bytes() const;

 private:
  const BufferPlan* plan_;
  std::vector<std::vector<std::byte*>> slots_;  // by Value
  std::vector<Buffer> storage_;                 // one per pool
};

}  // namespace voltapile
