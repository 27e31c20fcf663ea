// When a step ended is read off the lanes, however late the issuing thread looks.
#include <thread>

#include <gtest/gtest.h>

#include "voltapile/base/clock.hpp"
#include "voltapile/comm/transport.hpp"
#include "voltapile/deck/parse.hpp"

#include "run_state.hpp"
#include "session.hpp"
#include "small_run.hpp"

namespace voltapile {
namespace {

TEST(StepEnd, is_before_whoever_waits_looks) {
  const Plan plan = make_plan(parse_deck(testing::kSmallDeck, "test.toml", {}));
  const auto job = [&](std::unique_ptr<Communicator> world) {
    const int self = world->rank();
    const auto device = make_cpu_device(1);
    Links links = make_plan_links(plan, std::move(world), *device, Transport::automatic);
    RankContext context(plan, *device, links, self);
    initialise(context, 1);
    Engine engine(context, plan.train);
    engine.set_state({.loss_scale = 1});
    const BatchRing ring = make_ring(context, plan.train, 1);
    for (const BatchMemory& batch : ring.batches) {
      std::fill(batch.pictures.begin(), batch.pictures.end(), uint8_t{77});
      std::fill(batch.labels.begin(), batch.labels.end(), 3);
    }
    double last = now_seconds();
    for (int64_t step = 0; step < 6; ++step) {
      engine.issue({.learning_rate = 1e-3, .step = step}, ring.batches.front(), {});
      engine.drain();
      const double done = now_seconds();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const double ended = engine.wait_for_step().ended;
      EXPECT_LT(last, ended) << step;
      EXPECT_LE(ended, done) << step;
      last = ended;
    }
  };
  spawn_ranks(plan.mesh.size(), job);
}

}  // namespace
}  // namespace voltapile
