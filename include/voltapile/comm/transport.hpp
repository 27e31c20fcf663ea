// How tensors travel between the memories of two ranks' devices.
#pragma once
#include <memory>

#include "voltapile/comm/communicator.hpp"

namespace voltapile {

// nccl: from GPU to GPU, one rank a GPU. staged: through pinned host memory and the host's
// communicator, for ranks that share a GPU and for clusters without NCCL. automatic: nccl unless
// ranks share a GPU.
enum class Transport { automatic, nccl, staged };

// Collective over `host`: a communicator of the same ranks whose calls take this device's memory.
// Where that is the host's (cpu, dry), `host` itself. The result keeps `host` for its control calls
// (barrier, gather_text, abort), and its name and place. Error(bad_input) on every rank when nccl
// is asked for and two ranks share a GPU.
std::unique_ptr<Communicator> on_device(std::unique_ptr<Communicator> host, Device& device,
                                        Transport transport);

}  // namespace voltapile
