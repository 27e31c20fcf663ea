// Every operation against a plain loop, bit for bit, on every carrier; the same program runs under
// mpirun.
#include <gtest/gtest.h>

#include "carriers.hpp"

namespace voltapile::testing {
namespace {

// Around the borders of pieces (32 elements), of one accumulation block (1024), and of the sizes
// where the backends change their way.
const std::vector<int64_t> kSizes = {0, 1, 2, 7, 31, 33, 64, 65, 129, 1000, 4099};
constexpr int64_t kLarge = 70001;  // for two types; for all with VOLTAPILE_FULL=1

uint64_t seed_of(int rank, int64_t size, DType dtype) {
  return static_cast<uint64_t>(size) * 64 + static_cast<uint64_t>(rank) * 8 +
         static_cast<uint64_t>(dtype);
}

std::vector<Block> inputs_of(int ranks, DType dtype, int64_t elements) {
  std::vector<Block> inputs;
  for (int rank = 0; rank < ranks; ++rank)
    inputs.push_back(filled(dtype, elements, seed_of(rank, elements, dtype)));
  return inputs;
}

// What moves values whole sees only their width.
const std::vector<DType> kWidths = {DType::u8, DType::bf16, DType::f32, DType::i64};
// Sums are the common reduction; the others take turns with the types.
std::vector<DType> types_for(Reduction op) {
  if (op == Reduction::max && !full()) return {DType::f16, DType::f64, DType::i32};
  if (op == Reduction::min && !full()) return {DType::bf16, DType::f32, DType::u8, DType::i64};
  return {std::begin(kAllTypes), std::end(kAllTypes)};
}

template <class F>
void for_every_case(const std::vector<DType>& types, F f) {
  for (DType dtype : types) {
    auto sizes = kSizes;
    if (full() || dtype == DType::f32 || dtype == DType::f16) sizes.push_back(kLarge);
    for (int64_t size : sizes) {
      SCOPED_TRACE(format("{} x {}", size, name_of(dtype)));
      f(dtype, size);
    }
  }
}

class OnRanks : public OnCarriers {
 protected:
  // NCCL sums in the tensor's type and in its own order.
  bool is_reduced(const TensorView& got, const TensorView& expected,
                  const std::vector<Block>& inputs, Reduction op, int64_t first = 0) const {
    if (GetParam().carrier != Carrier::nccl || op != Reduction::sum)
      return same_bits(got, expected);
    return is_near_sum(got, inputs, first);
  }
};

TEST_P(OnRanks, AllReduceCombinesInRankOrder) {
  on_ranks(GetParam(), [&](Communicator& world, const auto& device) {
    TestLane lane(device);
    for (Reduction op : kAllReductions) {
      for_every_case(types_for(op), [&](DType dtype, int64_t size) {
        const auto inputs = inputs_of(world.size(), dtype, size);
        const Block mine = filled(dtype, size, seed_of(world.rank(), size, dtype));
        world.all_reduce(lane(mine), op, lane);
        lane.wait();
        EXPECT_TRUE(is_reduced(mine.view(), reduced(inputs, op).view(), inputs, op));
      });
    }
  });
}

TEST_P(OnRanks, ReduceScatterLeavesEachRankItsPiece) {
  on_ranks(GetParam(), [&](Communicator& world, const auto& device) {
    TestLane lane(device);
    const int ranks = world.size(), rank = world.rank();
    for (Reduction op : kAllReductions) {
      for_every_case(types_for(op), [&](DType dtype, int64_t size) {
        const auto inputs = inputs_of(ranks, dtype, size * ranks);
        const Block expected = reduced(inputs, op);
        const Block in = filled(dtype, size * ranks, seed_of(rank, size * ranks, dtype));
        const Block out(dtype, size);
        world.reduce_scatter(lane(in), lane(out), op, lane);
        // And into its own place in `in`.
        const Block whole = filled(dtype, size * ranks, seed_of(rank, size * ranks, dtype));
        const TensorView place = whole.part(size * rank, size * (rank + 1));
        world.reduce_scatter(lane(whole), lane(whole, size * rank, size * (rank + 1)), op, lane);
        lane.wait();
        const TensorView piece = expected.part(size * rank, size * (rank + 1));
        EXPECT_TRUE(is_reduced(out.view(), piece, inputs, op, size * rank));
        EXPECT_TRUE(is_reduced(place, piece, inputs, op, size * rank));
        EXPECT_TRUE(same_bits(in.view(), inputs[static_cast<size_t>(rank)].view()));
      });
    }
  });
}

TEST_P(OnRanks, AllGatherPutsPiecesInRankOrder) {
  on_ranks(GetParam(), [&](Communicator& world, const auto& device) {
    TestLane lane(device);
    const int ranks = world.size(), rank = world.rank();
    for_every_case(kWidths, [&](DType dtype, int64_t size) {
      const auto inputs = inputs_of(ranks, dtype, size);
      const Block in = filled(dtype, size, seed_of(rank, size, dtype));
      const Block out(dtype, size * ranks), place(dtype, size * ranks);
      const TensorView own = place.part(size * rank, size * (rank + 1));
      fill(own, seed_of(rank, size, dtype));
      world.all_gather(lane(in), lane(out), lane);
      world.all_gather(lane(place, size * rank, size * (rank + 1)), lane(place), lane);
      lane.wait();
      for (int peer = 0; peer < ranks; ++peer) {
        const TensorView& theirs = inputs[static_cast<size_t>(peer)].view();
        EXPECT_TRUE(same_bits(out.part(size * peer, size * (peer + 1)), theirs));
        EXPECT_TRUE(same_bits(place.part(size * peer, size * (peer + 1)), theirs));
      }
    });
  });
}

TEST_P(OnRanks, BroadcastComesFromAnyRoot) {
  on_ranks(GetParam(), [&](Communicator& world, const auto& device) {
    TestLane lane(device);
    for (int root = 0; root < world.size(); ++root) {
      for_every_case(kWidths, [&](DType dtype, int64_t size) {
        const Block block = filled(dtype, size, seed_of(world.rank(), size, dtype));
        world.broadcast(lane(block), root, lane);
        lane.wait();
        EXPECT_TRUE(
            same_bits(block.view(), filled(dtype, size, seed_of(root, size, dtype)).view()));
      });
    }
  });
}

// Everybody sends two tensors to everybody, itself too, in one call; the two must not swap.
TEST_P(OnRanks, ExchangeMatchesPeersInOrder) {
  on_ranks(GetParam(), [&](Communicator& world, const auto& device) {
    TestLane lane(device);
    const int ranks = world.size(), rank = world.rank();
    const auto seed = [&](int from, int to, int which) {
      return static_cast<uint64_t>((from * ranks + to) * 2 + which);
    };
    for_every_case(kWidths, [&](DType dtype, int64_t size) {
      std::vector<Block> sent, received;
      std::vector<Transfer> transfers;
      for (int peer = 0; peer < ranks; ++peer) {
        for (int which = 0; which < 2; ++which) {
          sent.push_back(filled(dtype, size + which, seed(rank, peer, which)));
          received.emplace_back(dtype, size + which);
          transfers.push_back({Direction::receive, peer, lane(received.back())});
          transfers.push_back({Direction::send, peer, lane(sent.back())});
        }
      }
      world.exchange(transfers, lane);
      lane.wait();
      for (int peer = 0; peer < ranks; ++peer) {
        for (int which = 0; which < 2; ++which) {
          EXPECT_TRUE(same_bits(received[static_cast<size_t>(peer * 2 + which)].view(),
                                filled(dtype, size + which, seed(peer, rank, which)).view()));
        }
      }
    });
  });
}

// Ranks run ahead of each other: nothing is waited for between calls of different kinds.
TEST_P(OnRanks, ConsecutiveCallsDoNotMeetEachOthersMessages) {
  on_ranks(GetParam(), [&](Communicator& world, const auto& device) {
    const int ranks = world.size(), rank = world.rank();
    constexpr int kRounds = 40;
    const int64_t size = 300;
    std::vector<Block> sums, gathered, in, out;
    for (int round = 0; round < kRounds; ++round) {
      sums.push_back(filled(DType::f32, size, static_cast<uint64_t>(round * ranks + rank)));
      gathered.emplace_back(DType::f32, size * ranks);
      in.emplace_back(DType::f32, size);
      out.emplace_back(DType::f32, size * ranks);
    }
    TestLane lane(device);
    for (size_t round = 0; round < kRounds; ++round) {
      world.all_reduce(lane(sums[round]), Reduction::sum, lane);
      const std::vector<Transfer> transfers = {
          {Direction::send, (rank + 1) % ranks, lane(sums[round])},
          {Direction::receive, (rank + ranks - 1) % ranks, lane(in[round])}};
      world.exchange(transfers, lane);
      world.all_gather(lane(in[round]), lane(gathered[round]), lane);
      world.broadcast(lane(in[round]), static_cast<int>(round) % ranks, lane);
      world.reduce_scatter(lane(gathered[round]), lane(in[round]), Reduction::max, lane);
    }
    lane.wait();
    for (int round = 0; round < kRounds; ++round) {
      std::vector<Block> inputs;
      for (int peer = 0; peer < ranks; ++peer)
        inputs.push_back(filled(DType::f32, size, static_cast<uint64_t>(round * ranks + peer)));
      EXPECT_TRUE(is_reduced(in[static_cast<size_t>(round)].view(),
                             reduced(inputs, Reduction::sum).view(), inputs, Reduction::sum));
    }
  });
}

TEST_P(OnRanks, SplitOrdersByKeyAndLeavesOutNegativeColors) {
  on_ranks(GetParam(), [&](Communicator& world, const auto& device) {
    TestLane lane(device);
    const int ranks = world.size(), rank = world.rank();
    // The last rank stays out; the others go by parity, in falling order.
    const int color = rank == ranks - 1 && ranks > 1 ? -1 : rank % 2;
    auto part = world.split(color, -rank);
    if (color < 0) {
      EXPECT_EQ(part, nullptr);
      world.barrier();
      return;
    }
    const int members = ranks == 1 ? 1 : color == 0 ? ranks / 2 : (ranks - 1) / 2;
    ASSERT_EQ(part->size(), members);
    EXPECT_EQ(part->rank(), members - 1 - rank / 2);
    const auto texts = part->gather_text(std::string(static_cast<size_t>(rank), 'x'));
    for (int i = 0; i < members; ++i)
      EXPECT_EQ(texts[static_cast<size_t>(i)].size(),
                static_cast<size_t>(color + 2 * (members - 1 - i)));
    auto again = part->split(0, part->rank());
    EXPECT_EQ(again->rank(), part->rank());
    Block one(DType::i32, 1);
    one.view().as<int32_t>()[0] = 1;
    again->all_reduce(lane(one), Reduction::sum, lane);
    lane.wait();
    EXPECT_EQ(one.view().as<int32_t>()[0], members);
    world.barrier();
  });
}

TEST_P(OnRanks, GatherTextGivesEverybodyEverybodys) {
  on_ranks(GetParam(), [&](Communicator& world, const auto&) {
    for (size_t length : {0, 1, 10, 100000}) {
      const auto texts = world.gather_text(std::to_string(world.rank()) + std::string(length, '.'));
      ASSERT_EQ(texts.size(), static_cast<size_t>(world.size()));
      for (int peer = 0; peer < world.size(); ++peer)
        EXPECT_EQ(texts[static_cast<size_t>(peer)],
                  std::to_string(peer) + std::string(length, '.'));
    }
  });
}

// Five lanes at once, each with its communicator, issued in another order on every rank; but NCCL
// wants one order.
TEST_P(OnRanks, LanesCommunicateAtOnce) {
  on_ranks(GetParam(), [&](Communicator& world, const auto& device) {
    constexpr int kLanes = 5, kRounds = 30;
    const int64_t size = 5000;
    std::vector<std::unique_ptr<Communicator>> parts;
    for (int i = 0; i < kLanes; ++i) parts.push_back(world.split(0, world.rank()));
    std::vector<Block> blocks;
    for (int i = 0; i < kLanes; ++i) {
      blocks.emplace_back(DType::i64, size);
      for (int64_t k = 0; k < size; ++k) blocks.back().view().as<int64_t>()[k] = k + i;
    }
    std::vector<TestLane> lanes;
    for (int i = 0; i < kLanes; ++i) lanes.emplace_back(device, static_cast<Lane>(i));
    const int turn = GetParam().carrier == Carrier::nccl ? 0 : world.rank();
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kLanes; ++i) {
        const auto lane = static_cast<size_t>((i + turn) % kLanes);
        const int64_t length = round % 2 == 0 ? size : 20;
        parts[lane]->all_reduce(lanes[lane](blocks[lane], 0, length), Reduction::max, lanes[lane]);
        parts[lane]->broadcast(lanes[lane](blocks[lane]), round % world.size(), lanes[lane]);
      }
    }
    for (size_t i = 0; i < kLanes; ++i) {
      lanes[i].wait();
      for (int64_t k = 0; k < size; ++k)
        ASSERT_EQ(blocks[i].view().as<int64_t>()[k], k + static_cast<int64_t>(i));
    }
  });
}

// Nobody waits for the destructor: what was enqueued keeps its end alive.
TEST_P(OnRanks, CommunicatorMayGoBeforeItsWork) {
  on_ranks(GetParam(), [&](Communicator& world, const auto& device) {
    TestLane lane(device);
    Block block(DType::i64, 1000);
    for (int64_t k = 0; k < 1000; ++k) block.view().as<int64_t>()[k] = k;
    {
      auto part = world.split(0, world.rank());
      for (int round = 0; round < 10; ++round) part->all_reduce(lane(block), Reduction::max, lane);
    }
    lane.wait();
    EXPECT_EQ(block.view().as<int64_t>()[999], 999);
    world.barrier();
  });
}

// Long enough for several blocks in flight.
TEST_P(OnRanks, LongTensorsGoInBlocks) {
  on_ranks(GetParam(), [&](Communicator& world, const auto& device) {
    TestLane lane(device, Lane::compute, size_t{64} << 20);
    const int ranks = world.size();
    const int64_t size = 1'500'007 * ranks;
    Block sum(DType::i32, size), whole(DType::i32, size);
    for (int64_t i = 0; i < size; ++i)
      sum.view().as<int32_t>()[i] =
          static_cast<int32_t>(static_cast<uint32_t>(i) * static_cast<uint32_t>(world.rank() + 1));
    world.all_reduce(lane(sum), Reduction::sum, lane);
    const int64_t piece = size / ranks;
    const TensorView mine = lane(whole, piece * world.rank(), piece * (world.rank() + 1));
    world.reduce_scatter(lane(sum), mine, Reduction::sum, lane);
    world.all_gather(mine, lane(whole), lane);
    lane.wait();
    const uint32_t factor = static_cast<uint32_t>(ranks * (ranks + 1) / 2);
    int64_t wrong = 0;
    for (int64_t i = 0; i < size; ++i) {
      const uint32_t expected = static_cast<uint32_t>(i) * factor;
      if (static_cast<uint32_t>(sum.view().as<int32_t>()[i]) != expected) ++wrong;
      if (static_cast<uint32_t>(whole.view().as<int32_t>()[i]) !=
          expected * static_cast<uint32_t>(ranks))
        ++wrong;
    }
    EXPECT_EQ(wrong, 0);
  });
}

// More bytes than an int counts.
TEST(Backends, TensorsBeyondTwoGigabytes) {
  if (!full()) GTEST_SKIP() << "needs 9 GB: VOLTAPILE_FULL=1";
  if (most_ranks(2) != 2) GTEST_SKIP() << "needs two ranks";
  on_ranks(2, [](auto world) {
    TestLane lane;
    const int64_t size = (int64_t{1} << 31) + 4099;
    Block block(DType::u8, size);
    auto* values = block.view().template as<uint8_t>();
    if (world->rank() == 0)
      for (int64_t i = 0; i < size; ++i) values[i] = static_cast<uint8_t>(i % 251);
    const Transfer transfer{world->rank() == 0 ? Direction::send : Direction::receive,
                            1 - world->rank(), block.view()};
    world->exchange(std::span(&transfer, 1), lane);
    world->all_reduce(block.view(), Reduction::sum, lane);
    lane.wait();
    int64_t wrong = 0;
    for (int64_t i = 0; i < size; ++i)
      if (values[i] != static_cast<uint8_t>(2 * (i % 251))) ++wrong;
    EXPECT_EQ(wrong, 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OnRanks, ::testing::ValuesIn(kEveryRanks), name_of_ranks);

// The digest of every operation's results on n ranks, by process and by thread.
TEST(Backends, ProcessesGiveTheBitsOfThreads) {
  if (!under_mpirun()) GTEST_SKIP() << "needs mpirun";
  const auto results_of = [](Communicator& world) {
    TestLane lane;
    std::vector<Block> results;
    for (DType dtype : kAllTypes) {
      for (int64_t size : {5, 999, 30000}) {
        Block sum = filled(dtype, size * world.size(), seed_of(world.rank(), size, dtype));
        Block piece(dtype, size);
        world.reduce_scatter(sum.view(), piece.view(), Reduction::sum, lane);
        world.all_reduce(sum.view(), Reduction::sum, lane);
        results.push_back(std::move(sum));
        results.push_back(std::move(piece));
      }
    }
    lane.wait();
    return results;
  };
  const int ranks = most_ranks(0);
  std::vector<std::vector<Block>> by_thread(static_cast<size_t>(ranks));
  spawn_ranks(ranks, [&](auto world) {
    by_thread[static_cast<size_t>(world->rank())] = results_of(*world);
  });
  on_ranks(ranks, [&](auto world) {
    const auto by_process = results_of(*world);
    const auto& expected = by_thread[static_cast<size_t>(world->rank())];
    for (size_t i = 0; i < by_process.size(); ++i)
      EXPECT_TRUE(same_bits(by_process[i].view(), expected[i].view())) << i;
  });
}

}  // namespace
}  // namespace voltapile::testing
