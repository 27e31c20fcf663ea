#include "voltapile/comm/transport.hpp"

#include <algorithm>
#include <map>

#include "voltapile/base/host.hpp"

#include "kernels.hpp"
#include "nccl_communicator.hpp"
#include "staged_communicator.hpp"

namespace voltapile {
namespace {

struct Seat {
  std::string gpu;  // "host, bus id"
  std::string place;
};

std::vector<Seat> seats_of(Communicator& world, const cuda::Context& context) {
  std::vector<Seat> seats;
  const std::string mine = format("{} of {}", context.gpu().bus_id, host_name());
  for (const std::string& text : world.gather_text(mine + "\n" + world.place)) {
    const size_t end = text.find('\n');
    seats.push_back({text.substr(0, end), text.substr(end + 1)});
  }
  return seats;
}

// "rank 0 of 2 and rank 1 of 2 share GPU 0000:17:00.0 of n1", or "" where each has its own.
std::string sharing(const std::vector<Seat>& seats) {
  std::map<std::string, const Seat*> first_on;
  for (const Seat& seat : seats) {
    const auto [at, alone] = first_on.try_emplace(seat.gpu, &seat);
    if (!alone) return format("{} and {} share GPU {}", at->second->place, seat.place, seat.gpu);
  }
  return "";
}

}  // namespace

TransportChoice choose_transport(Communicator& world, Device& device, Transport asked) {
  cuda::Context* context = cuda::context_of(device);
  if (context == nullptr) {
    if (asked == Transport::nccl) {
      throw Error(ExitCode::bad_input,
                  "parallel.transport = \"nccl\" carries tensors between GPUs, and this run has "
                  "none: set run.device = \"cuda\", or parallel.transport = \"auto\"");
    }
    return {asked, ""};
  }
  if (world.size() == 1) return {asked == Transport::automatic ? Transport::nccl : asked, ""};
  if (asked == Transport::staged) return {asked, ""};
  const std::string shared = sharing(seats_of(world, *context));
  if (asked == Transport::nccl && shared.empty()) return {asked, ""};
  if (asked == Transport::nccl) {
    throw Error(ExitCode::bad_input,
                format("parallel.transport = \"nccl\" needs a GPU for each rank: {}; set "
                       "parallel.transport = \"staged\", or start fewer ranks on that machine",
                       shared));
  }
  if (shared.empty()) return {Transport::nccl, "each rank has a GPU of its own"};
  return {Transport::staged, shared};
}

std::unique_ptr<Communicator> on_device(std::unique_ptr<Communicator> host, Device& device,
                                        Transport transport) {
  cuda::Context* context = cuda::context_of(device);
  if (context == nullptr) return host;
  if (choose_transport(*host, device, transport).transport == Transport::staged)
    return std::make_unique<cuda::StagedCommunicator>(std::move(host), device, *context);
  return std::make_unique<cuda::NcclCommunicator>(std::move(host), device, *context);
}

// Rings and trees were connected when the communicators were made; messages between two ranks
// connect at the first one, and kernels load at their first use.
void open_connections(Links& links, Device& device) {
  cuda::Context* context = cuda::context_of(device);
  if (context == nullptr) return;
  const auto nccl = [](const std::unique_ptr<Communicator>& link) {
    return link != nullptr && link->size() > 1 &&
           dynamic_cast<const cuda::NcclCommunicator*>(link.get()) != nullptr;
  };
  if (!nccl(links.norm)) return;
  const std::string place = links.world->place;
  try {
    const Buffer memory = device.allocate(sizeof(int32_t), "link check");
    const TensorView word{memory.data(), DType::i32, {1}};
    for (const auto& [link, lane] :
         {std::pair(&links.tensor, Lane::compute), std::pair(&links.tensor_reduce, Lane::dp),
          std::pair(&links.data, Lane::dp), std::pair(&links.norm, Lane::dp)}) {
      if (!nccl(*link)) continue;
      (*link)->all_reduce(word, Reduction::max, device.stream(lane));
      device.wait_on_host(device.record(device.stream(lane)));
    }
    for (const auto& [edge, link] : links.edges) {
      if (!nccl(link)) continue;
      const bool sends = link->rank() == 0;
      const Transfer transfer{sends ? Direction::send : Direction::receive, sends ? 1 : 0, word};
      Stream& stream = device.stream(sends ? Lane::pipe_out : Lane::pipe_in);
      link->exchange({&transfer, 1}, stream);
      device.wait_on_host(device.record(stream));
    }
    context->memory().measure_overhead("NCCL");
  } catch (const PeerFailure&) { throw; } catch (const Error& error) {
    throw Error(error.code(), format("{} on {}: {}", place, host_name(), error.what()));
  }
}

void set_collective_limit(double seconds) { cuda::NcclWatch::instance().set_limit(seconds); }

}  // namespace voltapile
