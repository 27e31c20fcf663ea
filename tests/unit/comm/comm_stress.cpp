// Random sequences of calls on random splits, several lanes at once, against a plain simulation of
// all ranks. Seeded; VOLTAPILE_FULL=1 runs many more.
#include <algorithm>
#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

#include "carriers.hpp"

namespace voltapile::testing {
namespace {

constexpr int64_t kElements = 4096;
enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast, exchange };

struct Call {
  int part;  // of the world, which has its lane and its tensor on every rank
  Kind kind;
  Reduction op;
  int number;  // root, or how far messages go
  int64_t elements;
  uint64_t seed;
};

struct Part {
  DType dtype;
  std::vector<Communicator::Seat> seats;  // [world rank]
};

// The same on every rank: drawn from the seed alone.
struct Plan {
  int ranks;
  std::vector<Part> parts;
  std::vector<Call> calls;

  Plan(int n, uint64_t seed) : ranks(n) {
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t limit) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
    };
    const DType types[] = {DType::f32, DType::i32, DType::bf16, DType::i64};
    for (int i = 0; i < 4; ++i) {
      Part part{types[i], {}};
      for (int rank = 0; rank < n; ++rank)
        part.seats.push_back({static_cast<int>(below(4)) - 1, static_cast<int>(below(3))});
      parts.push_back(part);
    }
    for (int i = 0; i < 120; ++i) {
      calls.push_back({static_cast<int>(below(4)), static_cast<Kind>(below(5)),
                       static_cast<Reduction>(below(3)), static_cast<int>(below(n)),
                       below(2) == 0 ? below(40) : below(kElements / n + 1), random()});
    }
  }

  // World ranks of `rank`'s communicator of `part`, in its order.
  std::vector<int> members(size_t part, int rank) const {
    const auto& seats = parts[part].seats;
    std::vector<int> result;
    for (int peer = 0; peer < ranks; ++peer) {
      if (seats[static_cast<size_t>(peer)].color == seats[static_cast<size_t>(rank)].color)
        result.push_back(peer);
    }
    std::stable_sort(result.begin(), result.end(), [&](int a, int b) {
      return seats[static_cast<size_t>(a)].key < seats[static_cast<size_t>(b)].key;
    });
    return result;
  }
};

// New values before each sum: else floating sums of sums overflow.
void refill(const Call& call, const TensorView& t, int world_rank) {
  if (call.op == Reduction::sum) fill(t, call.seed + static_cast<uint64_t>(world_rank));
}

void issue(const Call& call, Communicator& c, TestLane& lane, const Block& block, int world_rank) {
  const int n = c.size(), me = c.rank();
  const int64_t length = call.elements;
  if (call.op == Reduction::sum)
    lane.rewrite(block, [=](const TensorView& t) { refill(call, t, world_rank); });
  const TensorView t = lane(block);
  const TensorView whole = t.slice_flat(0, length * n);
  const TensorView mine = t.slice_flat(length * me, length * (me + 1));
  switch (call.kind) {
    case Kind::all_reduce: return c.all_reduce(whole, call.op, lane);
    case Kind::reduce_scatter: return c.reduce_scatter(whole, mine, call.op, lane);
    case Kind::all_gather: return c.all_gather(mine, whole, lane);
    case Kind::broadcast: return c.broadcast(whole, call.number % n, lane);
    case Kind::exchange: {
      const int64_t half = length * n / 2;
      const Transfer transfers[] = {
          {Direction::receive, (me + n - call.number % n) % n, t.slice_flat(half, 2 * half)},
          {Direction::send, (me + call.number) % n, t.slice_flat(0, half)}};
      return c.exchange(transfers, lane);
    }
  }
}

// What the call does to the tensors of one communicator's members.
void simulate(const Call& call, const std::vector<Block*>& tensors,
              const std::vector<int>& members) {
  const auto n = tensors.size();
  const int64_t length = call.elements;
  std::vector<Block> before;
  for (size_t i = 0; i < n; ++i) {
    refill(call, tensors[i]->view(), members[i]);
    Block copy(tensors[i]->view().dtype, kElements);
    std::memcpy(copy.view().data, tensors[i]->view().data, copy.view().bytes());
    before.push_back(std::move(copy));
  }
  const auto copy = [&](size_t from, int64_t source, size_t to, int64_t target, int64_t count) {
    const TensorView in = before[from].part(source, source + count);
    std::memcpy(tensors[to]->part(target, target + count).data, in.data, in.bytes());
  };
  const int64_t whole = length * static_cast<int64_t>(n);
  if (call.kind == Kind::all_reduce || call.kind == Kind::reduce_scatter) {
    const Block result = reduced(before, call.op);
    for (size_t i = 0; i < n; ++i) {
      const bool all = call.kind == Kind::all_reduce;
      const int64_t begin = all ? 0 : length * static_cast<int64_t>(i);
      const TensorView out = result.part(begin, all ? whole : begin + length);
      std::memcpy(tensors[i]->part(begin, kElements).data, out.data, out.bytes());
    }
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    if (call.kind == Kind::all_gather) {
      for (size_t peer = 0; peer < n; ++peer) {
        const int64_t begin = length * static_cast<int64_t>(peer);
        copy(peer, begin, i, begin, length);
      }
    } else if (call.kind == Kind::broadcast) {
      copy(static_cast<size_t>(call.number) % n, 0, i, 0, whole);
    } else {
      copy((i + n - static_cast<size_t>(call.number) % n) % n, 0, i, whole / 2, whole / 2);
    }
  }
}

std::vector<std::vector<Block>> simulated(const Plan& plan) {
  std::vector<std::vector<Block>> tensors(plan.parts.size());  // [part][world rank]
  for (size_t part = 0; part < tensors.size(); ++part) {
    for (int rank = 0; rank < plan.ranks; ++rank)
      tensors[part].push_back(filled(plan.parts[part].dtype, kElements, part));
  }
  for (const Call& call : plan.calls) {
    const auto part = static_cast<size_t>(call.part);
    for (int rank = 0; rank < plan.ranks; ++rank) {
      const auto members = plan.members(part, rank);
      if (members[0] != rank || plan.parts[part].seats[static_cast<size_t>(rank)].color < 0)
        continue;
      std::vector<Block*> theirs;
      for (int member : members) theirs.push_back(&tensors[part][static_cast<size_t>(member)]);
      simulate(call, theirs, members);
    }
  }
  return tensors;
}

// One rank's run; it fails before call number `fail_at`.
std::vector<Block> run(const Plan& plan, Communicator& world, const std::shared_ptr<Device>& device,
                       size_t fail_at) {
  const int rank = world.rank();
  std::vector<Block> tensors;
  std::vector<TestLane> lanes;
  std::vector<std::unique_ptr<Communicator>> parts;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const auto seat = plan.parts[i].seats[static_cast<size_t>(rank)];
    tensors.push_back(filled(plan.parts[i].dtype, kElements, i));
    lanes.emplace_back(device, static_cast<Lane>(i));
    parts.push_back(world.split(seat.color, seat.key));
  }
  for (size_t i = 0; i < plan.calls.size(); ++i) {
    if (i == fail_at) throw Error(ExitCode::bad_data, format("rank {} fails at {}", rank, i));
    const auto part = static_cast<size_t>(plan.calls[i].part);
    if (parts[part] != nullptr)
      issue(plan.calls[i], *parts[part], lanes[part], tensors[part], rank);
  }
  for (auto& lane : lanes) lane.wait();
  world.barrier();
  return tensors;
}

int rounds(int few, int many) { return full() ? many : few; }

// `count` of the parameter is the most ranks.
class Stress : public OnCarriers {};

TEST_P(Stress, RandomCallsOnRandomSplitsMatchASimulation) {
  const bool host = GetParam().carrier == Carrier::host;
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(rounds(host ? 14 : 4, 700)); ++seed) {
    const int most = host ? most_ranks(8) : GetParam().count;
    const Plan plan(2 + static_cast<int>(seed) % (most - 1), seed);
    SCOPED_TRACE(format("seed {} on {} ranks", seed, plan.ranks));
    const auto expected = simulated(plan);
    on_ranks({GetParam().carrier, plan.ranks}, [&](Communicator& world, const auto& device) {
      const auto rank = static_cast<size_t>(world.rank());
      const auto tensors = run(plan, world, device, plan.calls.size());
      for (size_t part = 0; part < tensors.size(); ++part)
        EXPECT_TRUE(same_bits(tensors[part].view(), expected[part][rank].view()))
            << "part " << part << " on rank " << rank;
    });
  }
}

TEST_P(Stress, ARankThatFailsAnywhereEndsAllWithItsCause) {
  if (under_mpirun()) GTEST_SKIP() << "a failure would end the job";
  const bool host = GetParam().carrier == Carrier::host;
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(rounds(host ? 30 : 6, 1500)); ++seed) {
    const int most = host ? 8 : GetParam().count;
    const Plan plan(2 + static_cast<int>(seed) % (most - 1), seed);
    const int culprit = static_cast<int>(mixed(seed) % static_cast<uint64_t>(plan.ranks));
    const size_t at = mixed(seed + 1) % plan.calls.size();
    std::string message;
    try {
      on_ranks({GetParam().carrier, plan.ranks}, [&](Communicator& world, const auto& device) {
        run(plan, world, device, world.rank() == culprit ? at : plan.calls.size());
      });
    } catch (const Error& error) { message = error.what(); }
    EXPECT_EQ(message, format("rank {} fails at {}", culprit, at)) << "seed " << seed;
  }
}

// Sums of two have one order, so NCCL's have the same bits.
INSTANTIATE_TEST_SUITE_P(Carriers, Stress,
                         ::testing::Values(Ranks{Carrier::host, 2}, Ranks{Carrier::staged, 4},
                                           Ranks{Carrier::nccl, 2}),
                         name_of_ranks);

}  // namespace
}  // namespace voltapile::testing
