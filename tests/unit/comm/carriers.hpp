// Runs a test's body on ranks whose tensors travel by a given carrier: the same tests hold for all.
#pragma once
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

// Every process of a job must come here. The body gets the world and the device of one rank.
template <class Body>
void on_ranks(const Ranks& ranks, Body body) {
  on_ranks(ranks.count, [&](std::unique_ptr<Communicator> host) {
    const std::shared_ptr<Device> device = device_for(ranks.carrier, host->rank());
    const auto world = carried(std::move(host), *device, ranks.carrier);
    body(*world, device);
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
