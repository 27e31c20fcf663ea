// The engine on a device that records repeated work and then replays it: no more than its first two
// times does a recording call anything on the host.
#include <cstdlib>
#include <map>

#include <gtest/gtest.h>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/train/engine.hpp"

namespace voltapile {
namespace {

class RecordingDevice final : public Device {
 public:
  std::string describe() const override { return "dry, recording"; }
  Buffer allocate(size_t bytes, std::string_view what) override {
    return dry_->allocate(bytes, what);
  }
  // All of it real: the engine reads the clocks of many instructions.
  Buffer allocate_host(size_t bytes, std::string_view) override {
    return {std::calloc(1, bytes), bytes, [](void* data) { std::free(data); }};
  }
  Buffer allocate_compute(size_t bytes, std::string_view what, ThreadPool&) override {
    return allocate_host(bytes, what);
  }
  size_t allocated_bytes() const override { return dry_->allocated_bytes(); }
  Stream& stream(Lane lane) override { return dry_->stream(lane); }
  Event record(Stream& stream) override { return dry_->record(stream); }
  void wait(Stream& stream, Event event) override { dry_->wait(stream, event); }
  void wait_on_host(Event event) override { dry_->wait_on_host(event); }
  void copy(void* dst, const void* src, size_t bytes, Stream& stream) override {
    dry_->copy(dst, src, bytes, stream);
  }
  void mark(Stream& stream, double* seconds) override { dry_->mark(stream, seconds); }
  void repeat(Stream&, uint64_t key, const std::function<void()>& enqueue) override {
    if (++times_[key] <= 2) enqueue();
    else ++replayed_;
  }
  Kernels& kernels() override { return dry_->kernels(); }
  void fail(const std::string& why) override { dry_->fail(why); }
  void wait_until_idle() override {}
  int replayed() const { return replayed_; }

 private:
  std::unique_ptr<Device> dry_ = make_dry_device();
  std::map<uint64_t, int> times_;
  int replayed_ = 0;
};

constexpr const char* kDeck = R"(
run = { name = "recorded", steps = 10 }
model = { image = 32, patch = 4, dim = 64, depth = 8, heads = 4, classes = 10 }
parallel = { pipeline = 2 }
batch = { global = 24, micro = 2 }
memory = { recompute = "layers", checkpoint_every = 2 }
data = { format = "synthetic" }
)";

class RecordedWork : public ::testing::TestWithParam<std::string> {};

TEST_P(RecordedWork, RecomputesUnderEverySchedule) {
  std::vector<std::string> overrides{format("parallel.schedule=\"{}\"", GetParam())};
  if (GetParam() == "interleaved" || GetParam() == "breadth_first")
    overrides.push_back("parallel.chunks=2");
  const Plan plan = make_plan(parse_deck(kDeck, "recorded.toml", overrides));
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    RecordingDevice device;
    Links links = make_links(make_dry_communicator(rank, plan.mesh.size()), plan.mesh,
                             {{0, 1}, {1, 0}}, device, Transport::automatic);
    RankContext context(plan, device, links, rank);
    Engine engine(context, plan.train);
    for (int64_t step = 0; step < 10; ++step) {
      ASSERT_NO_THROW(engine.issue({.learning_rate = 1e-3, .step = step}, BatchMemory{}, {}))
          << "step " << step << " of rank " << rank;
      engine.wait_for_step();
    }
    EXPECT_GT(device.replayed(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, RecordedWork,
                         ::testing::Values("gpipe", "1f1b", "interleaved", "breadth_first",
                                           "zero_bubble_h1"),
                         [](const auto& info) { return "with_" + info.param; });

}  // namespace
}  // namespace voltapile
