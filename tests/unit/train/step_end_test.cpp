// When a step ended is read off the lanes, however late the issuing thread looks.
#include <thread>

#include <gtest/gtest.h>

#include "voltapile/base/clock.hpp"
#include "voltapile/deck/parse.hpp"

#include "ready_engine.hpp"
#include "small_run.hpp"

namespace voltapile {
namespace {

TEST(StepEnd, is_before_whoever_waits_looks) {
  const Plan plan = make_plan(parse_deck(testing::kSmallDeck, "test.toml", {}));
  const auto job = [&](std::unique_ptr<Communicator> world) {
    testing::ReadyEngine ready(plan, std::move(world));
    double last = now_seconds();
    for (int64_t step = 0; step < 6; ++step) {
      ready.issue(step);
      ready.engine.drain();
      const double done = now_seconds();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const double ended = ready.engine.wait_for_step().ended;
      EXPECT_LT(last, ended) << step;
      EXPECT_LE(ended, done) << step;
      last = ended;
    }
  };
  spawn_ranks(plan.mesh.size(), job);
}

}  // namespace
}  // namespace voltapile
