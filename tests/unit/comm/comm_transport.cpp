// What is the transports' own: long tensors, recordings, ranks that share a GPU, and ends of all
// kinds. Needs a GPU, and two for NCCL between ranks.
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "carriers.hpp"

namespace voltapile::testing {
namespace {

template <class E = Error, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) { return error.what(); }
  return "nothing was thrown";
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

Block numbers(int64_t size, int factor) {
  Block block(DType::i32, size);
  for (int64_t i = 0; i < size; ++i)
    block.view().as<int32_t>()[i] = static_cast<int32_t>(i % 1000003) * factor;
  return block;
}

int64_t differences(const Block& block, int64_t begin, int64_t end, int64_t first, int factor) {
  int64_t wrong = 0;
  for (int64_t i = begin; i < end; ++i) {
    const auto expected = static_cast<int32_t>((first + i - begin) % 1000003) * factor;
    if (block.view().as<int32_t>()[i] != expected) ++wrong;
  }
  return wrong;
}

class OnGpus : public OnCarriers {};

TEST_P(OnGpus, TensorsLongerThanAPieceArriveWhole) {
  on_ranks(GetParam(), [](Communicator& world, const auto& device) {
    const int rank = world.rank(), other = 1 - rank;
    const int64_t size = 2 * 4'500'001;  // 36 MB
    TestLane lane(device, Lane::compute, size_t{192} << 20);
    const Block sum = numbers(size, rank + 1);
    world.all_reduce(lane(sum), Reduction::sum, lane);
    lane.wait();
    EXPECT_EQ(differences(sum, 0, size, 0, 3), 0);

    const Block sent = numbers(size, rank + 5), received(DType::i32, size);
    const Transfer both[] = {{Direction::receive, other, lane(received)},
                             {Direction::send, other, lane(sent)}};
    world.exchange(both, lane);
    world.broadcast(lane(sent), 1, lane);
    lane.wait();
    EXPECT_EQ(differences(received, 0, size, 0, other + 5), 0);
    EXPECT_EQ(differences(sent, 0, size, 0, 6), 0);

    const Block whole = numbers(2 * size, rank + 1), piece(DType::i32, size);
    world.reduce_scatter(lane(whole), lane(piece), Reduction::sum, lane);
    world.all_gather(lane(piece), lane(whole), lane);
    lane.wait();
    EXPECT_EQ(differences(piece, 0, size, rank * size, 3), 0);
    EXPECT_EQ(differences(whole, 0, 2 * size, 0, 3), 0);
  });
}

// All of the process end together, whatever they wait for: the others' calls, and this rank's own.
TEST_P(OnGpus, AbortEndsBlockedLanes) {
  on_ranks(GetParam(), [](Communicator& world, const auto& device) {
    world.name = "dp(pp0 tp0)";
    const Block block(DType::f32, 4000);
    TestLane lane(device);
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      world.abort("a test wants it");
    } else {
      world.all_reduce(lane(block), Reduction::sum, lane);
      const auto message = message_of<PeerFailure>([&] { lane.wait(); });
      EXPECT_TRUE(mentions(message, "a test wants it") && mentions(message, "dp(pp0 tp0)") &&
                  mentions(message, "rank 0 of 2"))
          << message;
    }
    device->fail("over");
    device->wait_until_idle();
    EXPECT_THROW(world.barrier(), PeerFailure);
    EXPECT_THROW(world.poll_error(), Error);
  });
}

// As a rank does whose own work fails: its lanes may wait for others.
TEST_P(OnGpus, AFailedDeviceLetsGoItsLanes) {
  const auto message = message_of([&] {
    on_ranks(GetParam(), [](Communicator& world, const auto& device) {
      const Block block(DType::f32, 4000);
      TestLane lane(device);
      auto one = world.split(0, world.rank()), two = world.split(0, world.rank());
      (world.rank() == 0 ? one : two)->all_reduce(lane(block), Reduction::sum, lane);
      if (world.rank() == 0) {
        device->fail("rank 0 read nonsense");
        world.abort("rank 0 read nonsense");
        device->wait_until_idle();
        throw Error(ExitCode::bad_data, "rank 0 read nonsense");
      }
      lane.wait();
    });
  });
  EXPECT_EQ(message, "rank 0 read nonsense");
}

TEST_P(OnGpus, ARankThatThrowsEndsTheOthers) {
  const auto message = message_of([&] {
    on_ranks(GetParam(), [](Communicator& world, const auto& device) {
      const Block block(DType::f32, 4000);
      TestLane lane(device);
      auto part = world.split(0, world.rank());
      if (world.rank() == 1) throw Error(ExitCode::bad_data, "the cause");
      part->all_reduce(lane(block), Reduction::sum, lane);
      lane.wait();
    });
  });
  EXPECT_EQ(message, "the cause");
}

INSTANTIATE_TEST_SUITE_P(Two, OnGpus,
                         ::testing::Values(Ranks{Carrier::staged, 2}, Ranks{Carrier::nccl, 2}),
                         name_of_ranks);

class OnOneGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (under_mpirun()) GTEST_SKIP() << "its ranks are threads";
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(OnOneGpu, NcclRefusesRanksThatShareIt) {
  std::vector<std::string> messages(3);
  spawn_ranks(3, [&](std::unique_ptr<Communicator> world) {
    const int rank = world->rank();
    const auto device = make_cuda_device({.local_rank = 0});
    EXPECT_EQ(choose_transport(*world, *device, Transport::automatic).transport, Transport::staged);
    try {
      choose_transport(*world, *device, Transport::nccl);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input);
      messages[static_cast<size_t>(rank)] = error.what();
    }
  });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_EQ(messages[0], messages[2]);
  EXPECT_TRUE(mentions(messages[0], "rank 0 of 3 and rank 1 of 3 share GPU ") &&
              mentions(messages[0], "parallel.transport = \"staged\""))
      << messages[0];
}

TEST_F(OnOneGpu, OneRankIsTheIdentityAndMayBeRecorded) {
  for (Carrier carrier : {Carrier::staged, Carrier::nccl}) {
    const std::shared_ptr<Device> device = make_cuda_device({});
    const auto world = carried(make_solo(), *device, carrier);
    EXPECT_TRUE(world->capturable());
    TestLane lane(device);
    const Block in = filled(DType::bf16, 77, 1), scattered(DType::bf16, 77),
                gathered(DType::bf16, 77), received(DType::bf16, 77);
    const TensorView a = lane(in), b = lane(scattered), c = lane(gathered), d = lane(received);
    for (int round = 0; round < 3; ++round) {
      device->repeat(lane, 1, [&] {
        world->all_reduce(a, Reduction::sum, lane);
        world->broadcast(a, 0, lane);
        world->reduce_scatter(a, b, Reduction::min, lane);
        world->all_gather(a, c, lane);
        const Transfer self[] = {{Direction::send, 0, a}, {Direction::receive, 0, d}};
        world->exchange(self, lane);
      });
    }
    lane.wait();
    for (const Block* block : {&in, &scattered, &gathered, &received})
      EXPECT_TRUE(same_bits(block->view(), filled(DType::bf16, 77, 1).view()));
  }
}

class OverNccl : public OnCarriers {};

// A recording outlives its communicator here: nothing waits for it, and nothing is freed too early.
TEST_P(OverNccl, CallsMayBeRecorded) {
  on_ranks(GetParam(), [](Communicator& world, const auto& device) {
    constexpr int kRounds = 6;
    const int64_t size = 100'000;
    const Block block = numbers(size, 1), back(DType::i32, size);
    auto part = world.split(0, world.rank());
    EXPECT_TRUE(part->capturable());
    TestLane lane(device);
    const TensorView t = lane(block), u = lane(back);
    const int other = 1 - world.rank();
    for (int round = 0; round < kRounds; ++round) {
      device->repeat(lane, 7, [&] {
        part->all_reduce(t, Reduction::sum, lane);
        const Transfer both[] = {{Direction::receive, other, u}, {Direction::send, other, t}};
        part->exchange(both, lane);
      });
      if (round == 2) part->broadcast(t, 1, lane);  // between replays, not recorded
    }
    lane.wait();
    EXPECT_EQ(differences(block, 0, size, 0, 1 << kRounds), 0);
    EXPECT_EQ(differences(back, 0, size, 0, 1 << kRounds), 0);
  });
}

TEST_P(OverNccl, TwoRunsGiveTheSameBits) {
  std::vector<Block> results;
  for (int run = 0; run < 2; ++run) {
    on_ranks(GetParam(), [&](Communicator& world, const auto& device) {
      TestLane lane(device, Lane::compute, size_t{32} << 20);
      for (int64_t size : {1000, 300'000, 8'000'000}) {
        Block block = filled(DType::f16, size, static_cast<uint64_t>(world.rank()));
        world.all_reduce(lane(block), Reduction::sum, lane);
        lane.wait();
        if (world.rank() == 0) results.push_back(std::move(block));
      }
    });
  }
  for (size_t i = 0; 2 * i < results.size(); ++i)
    EXPECT_TRUE(same_bits(results[i].view(), results[results.size() / 2 + i].view()));
}

TEST_P(OverNccl, AStuckPeerIsNamed) {
  const auto message = message_of([&] {
    on_ranks(GetParam(), [](Communicator& world, const auto& device) {
      world.name = "dp(pp0 tp0)";
      world.barrier();  // making it may take longer
      set_collective_limit(1.5);
      const Block block(DType::f32, 4000);
      TestLane lane(device);
      if (world.rank() == 0) {
        world.all_reduce(lane(block), Reduction::sum, lane);
        lane.wait();
      } else {
        std::this_thread::sleep_for(std::chrono::seconds(5));
      }
    });
  });
  set_collective_limit(600);
  EXPECT_TRUE(mentions(message, "all_reduce of 'dp(pp0 tp0)' on rank 0 of 2 has been running for"))
      << message;
}

INSTANTIATE_TEST_SUITE_P(Two, OverNccl, ::testing::Values(Ranks{Carrier::nccl, 2}), name_of_ranks);

}  // namespace
}  // namespace voltapile::testing
