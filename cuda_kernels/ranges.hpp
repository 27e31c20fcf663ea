// Private to cuda_kernels: instructions by name on the timeline of Nsight Systems (NVTX). Without a
// profiler a call tests one pointer.
#pragma once
#include <nvtx3/nvToolsExt.h>

#include "voltapile/schedule/instruction.hpp"

namespace voltapile::cuda {

class Ranges {
 public:
  Ranges();
  ~Ranges();
  Ranges(const Ranges&) = delete;
  Ranges& operator=(const Ranges&) = delete;
  // Of the calling thread; the inner one is closed first. "forward 3.1": the operation as the trace
  // names it, chunk and micro-batch; the category is the lane.
  void open(const Instruction& instruction);
  void close();

 private:
  nvtxDomainHandle_t domain_;
};

}  // namespace voltapile::cuda
