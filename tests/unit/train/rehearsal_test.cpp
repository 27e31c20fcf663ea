// The very engine on the dry device, one rank of each kind: it allocates what the plan counts, and
// nothing in a step.
#include <gtest/gtest.h>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/device/dry.hpp"
#include "voltapile/forecast/forecast.hpp"
#include "voltapile/train/engine.hpp"

namespace voltapile {
namespace {

constexpr const char* kDeck = R"(
run = { name = "dry", steps = 3 }
model = { image = 32, patch = 4, dim = 64, depth = 8, heads = 4, classes = 10 }
batch = { global = 32, micro = 2 }
data = { format = "synthetic" }
)";

struct Case {
  const char* name;
  std::vector<std::string> overrides;
};

class Rehearsal : public ::testing::TestWithParam<Case> {};

TEST_P(Rehearsal, AllocatesWhatThePlanCountsAndNothingInAStep) {
  const Plan plan = make_plan(parse_deck(kDeck, "dry.toml", GetParam().overrides));
  double flops = 0;
  for (int pp = 0; pp < plan.mesh.pp; ++pp) {
    const int rank = plan.mesh.rank({pp, 0, 0});
    const std::unique_ptr<Device> device = make_dry_device();
    std::vector<std::pair<int, int>> edges;
    for (int from = 0; from < plan.mesh.pp; ++from)
      for (int to = 0; to < plan.mesh.pp; ++to)
        if (from != to) edges.emplace_back(from, to);
    Links links = make_links(make_dry_communicator(rank, plan.mesh.size()), plan.mesh, edges,
                             *device, Transport::automatic);
    RankContext context(plan, *device, links, rank);
    const DryCounters& counted = dry_counters(*device);

    EXPECT_EQ(counted.device_bytes, plan.device_bytes(pp));
    size_t on_host = 0;
    for (const ValuePool& pool : plan.train.buffers[static_cast<size_t>(pp)].pools)
      if (pool.home == Home::host)
        for (size_t slot : pool.slot_bytes) on_host += slot;
    EXPECT_EQ(counted.host_bytes, on_host);

    Engine engine(context, plan.train);
    const size_t before = counted.peak_device_bytes, host_before = counted.peak_host_bytes;
    EXPECT_EQ(before, counted.device_bytes) << "the engine itself took device memory";
    const double flops_before = counted.flops();
    engine.issue({.learning_rate = 1e-3}, BatchMemory{}, {});
    flops += (counted.flops() - flops_before) * plan.mesh.dp * plan.mesh.tp;
    engine.wait_for_step();
    engine.issue({.learning_rate = 1e-3, .step = 1}, BatchMemory{}, {});
    EXPECT_EQ(counted.peak_device_bytes, before) << "a step allocated";
    EXPECT_EQ(counted.peak_host_bytes, host_before) << "a step allocated";
  }
  const double planned = forecast(plan).hardware_flops_per_step;
  // The device also counts the scores that attention's backward makes again, and what tensor ranks
  // repeat.
  EXPECT_GT(flops, planned);
  EXPECT_LT(flops, 1.1 * planned);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Rehearsal,
    ::testing::Values(
        Case{"one_rank", {}}, Case{"pipeline", {"parallel.pipeline=4", "parallel.schedule=1f1b"}},
        Case{"breadth_first",
             {"parallel.pipeline=2", "parallel.chunks=4", "parallel.schedule=breadth_first",
              "memory.recompute=layers", "memory.checkpoint_every=\"chunk\""}},
        Case{"zero_bubble",
             {"parallel.pipeline=2", "parallel.schedule=zero_bubble_h1", "precision.type=bf16"}},
        Case{"host_optimizer",
             {"parallel.pipeline=2", "parallel.chunks=4", "parallel.schedule=breadth_first",
              "memory.optimizer=host", "precision.type=f16"}},
        Case{"all_on_the_host",
             {"parallel.pipeline=2", "parallel.data=2", "parallel.schedule=1f1b",
              "memory.optimizer=host", "memory.weights=host", "memory.activations=host"}},
        Case{"all_on_nvme",
             {"parallel.pipeline=2", "parallel.chunks=2", "parallel.schedule=interleaved",
              "memory.optimizer=nvme", "memory.weights=nvme", "memory.nvme_dir=nvme"}},
        Case{"eight_bits",
             {"memory.activations=int8", "memory.recompute=layers", "precision.type=bf16"}},
        Case{"all_axes",
             {"parallel.pipeline=2", "parallel.data=2", "parallel.tensor=2", "optimizer.zero=1",
              "parallel.sequence=true", "memory.recompute=selective", "precision.type=f16"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace voltapile
