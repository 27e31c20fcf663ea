// What goes wrong ends with an error on every rank, never with a wait. Ranks as threads.
#include <atomic>

#include <gtest/gtest.h>

#include "lane.hpp"
#include "values.hpp"

namespace voltapile::testing {
namespace {

template <class E = Error, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) { return error.what(); }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

using Blocking = std::function<void(Communicator&, Stream&, const TensorView& whole)>;

// Calls that wait for rank 0, which never makes them.
const std::vector<std::pair<std::string, Blocking>> kBlocking = {
    {"all_reduce", [](auto& c, auto& s, auto& t) { c.all_reduce(t, Reduction::sum, s); }},
    {"reduce_scatter",
     [](auto& c, auto& s, auto& t) {
       const int64_t piece = t.elements() / c.size();
       c.reduce_scatter(t, t.slice_flat(piece * c.rank(), piece * (c.rank() + 1)), Reduction::sum,
                        s);
     }},
    {"all_gather",
     [](auto& c, auto& s, auto& t) {
       const int64_t piece = t.elements() / c.size();
       c.all_gather(t.slice_flat(piece * c.rank(), piece * (c.rank() + 1)), t, s);
     }},
    {"broadcast", [](auto& c, auto& s, auto& t) { c.broadcast(t, 0, s); }},
    {"exchange",
     [](auto& c, auto& s, auto& t) {
       const Transfer transfer{Direction::receive, 0, t};
       c.exchange(std::span(&transfer, 1), s);
     }},
    {"exchange",
     [](auto& c, auto& s, auto& t) {
       const Transfer transfer{Direction::send, 0, t};
       c.exchange(std::span(&transfer, 1), s);
     }},
};

TEST(Failures, AbortWakesWhoeverWaitsAndRefusesLaterCalls) {
  for (const auto& [call, block] : kBlocking) {
    SCOPED_TRACE(call);
    std::atomic<int> woken{0};
    spawn_ranks(4, [&](auto world) {
      auto part = world->split(0, world->rank());
      world->name = "the world";
      world->barrier();
      Block memory(DType::f32, 400);
      TestLane lane;
      if (world->rank() == 0) {
        part->abort("a test wants it");
      } else {
        block(*world, lane, memory.view());
        const auto message = message_of<PeerFailure>([&] { lane.wait(); });
        EXPECT_TRUE(mentions(message, "a test wants it") && mentions(message, call) &&
                    mentions(message, "the world") &&
                    mentions(message, format("rank {} of 4", world->rank())))
            << message;
        ++woken;
      }
      if (world->rank() != 0) {
        TestLane later;
        block(*world, later, memory.view());
        EXPECT_THROW(later.wait(), PeerFailure);
      }
      EXPECT_THROW(world->barrier(), PeerFailure);
      EXPECT_THROW(part->poll_error(), PeerFailure);
      EXPECT_THROW(part->gather_text(""), PeerFailure);
      EXPECT_THROW(part->split(0, 0), PeerFailure);
    });
    EXPECT_EQ(woken, 3);
  }
}

TEST(Failures, SpawnRanksRethrowsTheFirstCause) {
  for (const auto& [call, block] : kBlocking) {
    SCOPED_TRACE(call);
    const auto message = message_of([&, block = block] {
      spawn_ranks(5, [&](auto world) {
        TestLane lane;
        auto part = world->split(0, world->rank());  // gone before the lane, as Links should be
        Block memory(DType::f32, 500);
        if (part->rank() == 0) throw Error(ExitCode::bad_data, "rank 0 read nonsense");
        block(*part, lane, memory.view());
        lane.wait();
      });
    });
    EXPECT_EQ(message, "rank 0 read nonsense");
  }
}

// The failing rank's own lane waits for a peer that waits for it.
TEST(Failures, ARankThatThrowsWakesItsOwnLanes) {
  const auto message = message_of([&] {
    spawn_ranks(2, [&](auto world) {
      Block memory(DType::f32, 500);
      TestLane lane;
      auto part = world->split(0, world->rank());
      auto other = world->split(0, world->rank());
      if (world->rank() == 0) {
        part->all_reduce(memory.view(), Reduction::sum, lane);
        throw Error(ExitCode::failure, "the cause");
      }
      other->all_reduce(memory.view(), Reduction::sum, lane);
      lane.wait();
    });
  });
  EXPECT_EQ(message, "the cause");
}

TEST(Failures, ARankThatEndsEarlyIsNamedInsteadOfAwaited) {
  for (const auto& [call, block] : kBlocking) {
    SCOPED_TRACE(call);
    const auto message = message_of([&, block = block] {
      spawn_ranks(3, [&](auto world) {
        if (world->rank() == 0) return;
        TestLane lane;
        Block memory(DType::f32, 300);
        block(*world, lane, memory.view());
        lane.wait();
      });
    });
    EXPECT_TRUE(mentions(message, call) && mentions(message, "rank 0 of this communicator"))
        << message;
  }
}

TEST(Failures, DifferentCallsAreNamed) {
  const auto message = message_of([&] {
    spawn_ranks(3, [&](auto world) {
      TestLane lane;
      world->name = "tp(pp1 dp0)";
      Block memory(DType::f32, 300);
      if (world->rank() == 1) world->broadcast(memory.view(), 0, lane);
      else world->all_reduce(memory.view(), Reduction::sum, lane);
      lane.wait();
    });
  });
  EXPECT_TRUE(mentions(message, "'tp(pp1 dp0)'") && mentions(message, "broadcast of 300 x f32") &&
              mentions(message, "all_reduce of 300 x f32"))
      << message;
}

TEST(Failures, DifferentSizesAreNamed) {
  EXPECT_THROW(spawn_ranks(3,
                           [&](auto world) {
                             TestLane lane;
                             Block memory(DType::f32, 300 + world->rank());
                             world->all_reduce(memory.view(), Reduction::sum, lane);
                             lane.wait();
                           }),
               Error);
  const auto message = message_of([&] {
    spawn_ranks(2, [&](auto world) {
      TestLane lane;
      Block memory(DType::f32, 10 + world->rank());
      const Transfer transfer{world->rank() == 0 ? Direction::send : Direction::receive,
                              1 - world->rank(), memory.view()};
      world->exchange(std::span(&transfer, 1), lane);
      lane.wait();
    });
  });
  EXPECT_TRUE(mentions(message, "sends 40 bytes") && mentions(message, "44 bytes")) << message;
}

TEST(Failures, TwoLanesOnOneCommunicatorAreRefused) {
  const auto message = message_of([&] {
    spawn_ranks(2, [&](auto world) {
      Block memory(DType::f32, 300);
      const std::shared_ptr<Device> device = make_cpu_device(1);
      TestLane one(device, Lane::pipe_in), two(device, Lane::pipe_out);
      auto part = world->split(0, world->rank());
      if (world->rank() == 0) part->barrier();  // while rank 1 waits for a message
      const Transfer transfer{Direction::receive, 0, memory.view()};
      for (TestLane* lane : {&one, &two}) part->exchange(std::span(&transfer, 1), *lane);
      one.wait();  // one of the two fails, and with it their device
      two.wait();
    });
  });
  EXPECT_TRUE(mentions(message, "exchange while exchange of 'world/0'")) << message;
}

TEST(Failures, ArgumentsThatDoNotFitAreRefusedAtOnce) {
  spawn_ranks(2, [&](auto world) {
    TestLane lane;
    Block two(DType::f32, 20), one(DType::f32, 10), odd(DType::f32, 11), half(DType::f16, 10);
    EXPECT_THROW(world->reduce_scatter(two.view(), odd.view(), Reduction::sum, lane), Error);
    EXPECT_THROW(world->all_gather(one.view(), odd.view(), lane), Error);
    EXPECT_THROW(world->all_gather(half.view(), two.view(), lane), Error);
    // The other rank's place, and half of each.
    const int other = 1 - world->rank();
    EXPECT_THROW(world->all_gather(two.part(10 * other, 10 * other + 10), two.view(), lane), Error);
    EXPECT_THROW(world->reduce_scatter(two.view(), two.part(5, 15), Reduction::sum, lane), Error);
    EXPECT_THROW(world->broadcast(one.view(), 2, lane), Error);
    EXPECT_THROW(world->broadcast(one.view(), -1, lane), Error);
    EXPECT_THROW(world->all_reduce({nullptr, DType::f32, {3}}, Reduction::sum, lane), Error);
    const Transfer far{Direction::send, 2, one.view()};
    EXPECT_THROW(world->exchange(std::span(&far, 1), lane), Error);
    const Transfer self{Direction::send, world->rank(), one.view()};
    EXPECT_THROW(world->exchange(std::span(&self, 1), lane), Error);
    lane.wait();
  });
  EXPECT_THROW(spawn_ranks(0, [](auto) {}), Error);
}

// Another exception than Error comes out as it went in.
TEST(Failures, ForeignExceptionsPassThrough) {
  EXPECT_THROW(spawn_ranks(3,
                           [](auto world) {
                             if (world->rank() == 2) throw std::bad_alloc();
                             world->barrier();
                           }),
               std::bad_alloc);
}

}  // namespace
}  // namespace voltapile::testing
