// Runs a test's body on ranks whose tensors travel by a given carrier: the same tests hold for all.
#pragma once
#include <exception>
#include <latch>

#include "lane.hpp"
#include "ranks.hpp"

namespace voltapile::testing {

struct Ranks {
  Carrier carrier = Carrier::host;
  int count = 1;
};

inline std::string name_of_ranks(const ::testing::TestParamInfo<Ranks>& info) {
  const char* names[] = {"host", "staged", "nccl"};
  return format("{}_{}", names[static_cast<int>(info.param.carrier)], info.param.count);
}

// Every process of a job must come here. The body gets the world and the device of one rank. Ranks
// that are threads give back their memory together: the driver does it when the GPU is idle, which
// it is not while one of them waits for another.
template <class Body>
void on_ranks(const Ranks& ranks, Body body) {
  std::latch over(under_mpirun() ? 1 : ranks.count);
  on_ranks(ranks.count, [&](std::unique_ptr<Communicator> host) {
    std::shared_ptr<Device> device;
    std::unique_ptr<Communicator> world;
    std::exception_ptr failure;
    try {
      device = device_for(ranks.carrier, host->rank());
      world = carried(std::move(host), *device, ranks.carrier);
      body(*world, device);
    } catch (const std::exception& error) {
      failure = std::current_exception();
      if (world != nullptr) world->abort(error.what());
      host.reset();
    }
    if (device != nullptr) {
      if (failure) device->fail("this rank has failed");
      device->wait_until_idle();
    }
    over.arrive_and_wait();
    TestLane::left_over().clear();
    world.reset();
    device.reset();
    if (failure) std::rethrow_exception(failure);
  });
}

// Why these ranks cannot be had here; "" when they can. Collective, as above.
inline std::string why_not(const Ranks& ranks) {
  if (ranks.count > most_ranks(5)) return "more ranks than processes";
  if (ranks.carrier == Carrier::host) return "";
  if (const std::string why = why_no_gpu(); !why.empty()) return why;
  if (ranks.carrier == Carrier::staged) return "";
  static std::map<int, std::string> known;
  if (const auto at = known.find(ranks.count); at != known.end()) return at->second;
  std::string why;
  on_ranks(under_mpirun() ? most_ranks(0) : ranks.count, [&](std::unique_ptr<Communicator> host) {
    const std::shared_ptr<Device> device = device_for(ranks.carrier, host->rank());
    const TransportChoice choice = choose_transport(*host, *device, Transport::automatic);
    if (choice.transport == Transport::staged && (under_mpirun() || host->rank() == 0))
      why = choice.why;
  });
  return known[ranks.count] = why;
}

class OnCarriers : public ::testing::TestWithParam<Ranks> {
 protected:
  void SetUp() override {
    if (const std::string why = why_not(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};

inline const std::vector<Ranks> kEveryRanks = {
    {Carrier::host, 1}, {Carrier::host, 2},   {Carrier::host, 3},   {Carrier::host, 4},
    {Carrier::host, 5}, {Carrier::staged, 1}, {Carrier::staged, 2}, {Carrier::staged, 4},
    {Carrier::nccl, 1}, {Carrier::nccl, 2},   {Carrier::nccl, 3},   {Carrier::nccl, 4}};

}  // namespace voltapile::testing
