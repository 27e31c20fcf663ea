// For tests: one rank's engine on the CPU device, and a batch of grey pictures, all of one class.
#pragma once
#include <algorithm>
#include <memory>

#include "voltapile/comm/transport.hpp"

#include "run_state.hpp"
#include "session.hpp"

namespace voltapile::testing {

struct ReadyEngine {
  // Collective over `world`, which has a rank for each of the plan's. The plan is used as long as
  // this lives.
  ReadyEngine(const Plan& plan, std::unique_ptr<Communicator> world)
      : rank(world->rank()),
        links(make_plan_links(plan, std::move(world), *device, Transport::automatic)),
        context(plan, *device, links, rank),
        engine(initialised(context), plan.train),
        ring(make_ring(context, plan.train, 1)) {
    engine.set_state({.loss_scale = 1});
    for (const BatchMemory& batch : ring.batches) {
      std::fill(batch.pictures.begin(), batch.pictures.end(), uint8_t{77});
      std::fill(batch.labels.begin(), batch.labels.end(), 3);
    }
  }

  void issue(int64_t step = 0) {
    engine.issue({.learning_rate = 1e-3, .step = step}, ring.batches.front(), {});
  }

  int rank;
  std::unique_ptr<Device> device = make_cpu_device(1);
  Links links;
  RankContext context;
  Engine engine;
  BatchRing ring;

 private:
  static RankContext& initialised(RankContext& context) {
    initialise(context, 1);
    return context;
  }
};

}  // namespace voltapile::testing
