// The twin of cuda_kernels/transport.cpp: linked when the build has no CUDA. Every device's memory
// is the host's.
#include "voltapile/comm/transport.hpp"

namespace voltapile {
namespace {

void refuse_nccl(Transport asked) {
  if (asked != Transport::nccl) return;
  throw Error(ExitCode::bad_input,
              "this build has no CUDA, and parallel.transport = \"nccl\" asks for it: set "
              "parallel.transport = \"auto\", or build with -Dcuda=enabled");
}

}  // namespace

TransportChoice choose_transport(Communicator&, Device&, Transport asked) {
  refuse_nccl(asked);
  return {asked, ""};
}

std::unique_ptr<Communicator> on_device(std::unique_ptr<Communicator> host, Device&,
                                        Transport transport) {
  refuse_nccl(transport);
  return host;
}

void open_connections(Links&, Device&) {}

void set_collective_limit(double) {}

}  // namespace voltapile
