// How tensors travel between the memories of two ranks' devices.
#pragma once
#include <memory>
#include <string>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/deck/deck.hpp"

namespace voltapile {

// What "auto" became, and why, for the reader ("" where nothing was chosen).
struct TransportChoice {
  Transport transport = Transport::automatic;
  std::string why;
};
// Collective over `world`; every rank gives the same. automatic becomes nccl, or staged where ranks
// share a GPU; on a device whose memory is the host's it stays, for there is nothing to choose.
// Error(bad_input) on every rank when nccl is asked for and two ranks share a GPU, or the device is
// no GPU.
TransportChoice choose_transport(Communicator& world, Device& device, Transport asked);

// Collective over `host`: a communicator of the same ranks whose calls take the memory of `device`,
// which must outlive it. Where that is the host's (cpu, dry), `host` itself. The result keeps
// `host` for its control calls (barrier, gather_text, abort), and its name and place. Errors as
// above.
//
// nccl: one NCCL communicator, on the lane's stream; may be recorded (Device::repeat). Sums are
// taken in NCCL's order and in the tensor's own type: the same bits on the same mesh and machine,
// other bits than the host's backends; max and min may lose a NaN. One thread of the process
// watches all of them. An error of the network, a lost rank, a device that failed, abort(), or a
// collective that runs longer than the limit below ends them all, so that lanes become idle, and
// fails their devices with an Error that names rank, communicator and call. staged: through pinned
// host memory, in pieces of at most 32 MiB, with the host communicator's own arithmetic: the bits
// of the host's backends. Cannot be recorded, but for one rank.
std::unique_ptr<Communicator> on_device(std::unique_ptr<Communicator> host, Device& device,
                                        Transport transport);

// Collective over the links' world, once, before the first step: opens every connection of nccl, so
// that the device's memory is final, and counts it (memory.device_limit).
void open_connections(Links& links, Device& device);

// How long a collective of nccl may run (from the moment that its lane comes to it; work that is
// recorded is not measured) before its peer counts as lost. 600 s when nobody says.
void set_collective_limit(double seconds);

}  // namespace voltapile
