// Solo and dry communicators, links over a mesh, and the shared arithmetic.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "voltapile/comm/dry.hpp"
#include "voltapile/comm/transport.hpp"

#include "lane.hpp"
#include "values.hpp"

namespace voltapile::testing {
namespace {

TEST(Solo, IsTheIdentity) {
  const auto solo = make_solo();
  TestLane lane;
  Block in = filled(DType::bf16, 77, 1), scattered(DType::bf16, 77), gathered(DType::bf16, 77),
        received(DType::bf16, 77);
  solo->all_reduce(in.view(), Reduction::sum, lane);
  solo->broadcast(in.view(), 0, lane);
  solo->reduce_scatter(in.view(), scattered.view(), Reduction::min, lane);
  solo->all_gather(in.view(), gathered.view(), lane);
  const std::vector<Transfer> transfers = {{Direction::send, 0, in.view()},
                                           {Direction::receive, 0, received.view()}};
  solo->exchange(transfers, lane);
  lane.wait();
  for (const auto* block : {&in, &scattered, &gathered, &received})
    EXPECT_TRUE(same_bits(block->view(), filled(DType::bf16, 77, 1).view()));
  EXPECT_EQ(solo->gather_text("a"), std::vector<std::string>{"a"});
  EXPECT_EQ(solo->split(3, 1)->size(), 1);
  EXPECT_EQ(solo->split(-1, 0), nullptr);
  solo->abort("enough");
  EXPECT_THROW(solo->poll_error(), PeerFailure);
  EXPECT_THROW(solo->barrier(), PeerFailure);
}

// An overflow vote takes the maximum: a NaN must not get lost on the way.
TEST(Arithmetic, MaxAndMinKeepNaN) {
  spawn_ranks(3, [](auto world) {
    for (int bad = 0; bad < 3; ++bad) {
      for (Reduction op : {Reduction::max, Reduction::min}) {
        TestLane lane;
        Block values(DType::f32, 40);
        for (int i = 0; i < 40; ++i) {
          values.view().as<float>()[i] = world->rank() == bad
                                             ? std::numeric_limits<float>::quiet_NaN()
                                             : static_cast<float>(i - 20);
        }
        world->all_reduce(values.view(), op, lane);
        lane.wait();
        for (int i = 0; i < 40; ++i) EXPECT_TRUE(std::isnan(values.view().as<float>()[i]));
      }
    }
  });
}

// 1 + 2^-8 + 2^-8 in bf16: rounding after each step, ties to even, would lose both.
TEST(Arithmetic, SixteenBitSumsAreRoundedOnce) {
  spawn_ranks(3, [](auto world) {
    TestLane lane;
    Block values(DType::bf16, 1000);
    for (int i = 0; i < 1000; ++i)
      values.view().as<BFloat16>()[i] = BFloat16(world->rank() == 0 ? 1.0f : 0x1p-8f);
    world->all_reduce(values.view(), Reduction::sum, lane);
    lane.wait();
    for (int i = 0; i < 1000; ++i)
      EXPECT_EQ(static_cast<float>(values.view().as<BFloat16>()[i]), 1.0078125f);
  });
}

TEST(Links, SplitTheWorldAlongEveryAxisAndEdge) {
  const std::vector<std::pair<int, int>> edges = {{0, 1}, {1, 2}, {2, 0}};
  const Mesh mesh{3, 2, 2};
  const auto check = [&](std::unique_ptr<Communicator> world) {
    const int rank = world->rank();
    const Coord here = mesh.coord(rank);
    const auto device = make_cpu_device(1);
    const Links links = make_links(std::move(world), mesh, edges, *device, Transport::automatic);
    EXPECT_EQ(links.world->size(), 12);
    EXPECT_EQ(links.tensor->size(), 2);
    EXPECT_EQ(links.tensor->rank(), here.tp);
    EXPECT_EQ(links.tensor_reduce->rank(), here.tp);
    EXPECT_EQ(links.data->size(), 2);
    EXPECT_EQ(links.data->rank(), here.dp);
    EXPECT_EQ(links.norm->rank(), rank);
    EXPECT_EQ(links.tensor->name, format("tp(pp{} dp{})", here.pp, here.dp));
    EXPECT_EQ(links.data->place, mesh.rank_text(rank));
    EXPECT_EQ(links.edges.size(), 3u);
    for (const auto& [edge, link] : links.edges) {
      const bool on_edge = here.pp == edge.first || here.pp == edge.second;
      ASSERT_EQ(link != nullptr, on_edge);
      if (!on_edge) continue;
      EXPECT_EQ(link->size(), 2);
      EXPECT_EQ(link->rank(), here.pp == edge.first ? 0 : 1);
      EXPECT_TRUE(link->name.starts_with(format("edge {}->{}", edge.first, edge.second)));
    }
  };
  const auto check_members = [&](std::unique_ptr<Communicator> world) {
    const int rank = world->rank();
    const Coord here = mesh.coord(rank);
    const auto device = make_cpu_device(1);
    const Links links = make_links(std::move(world), mesh, edges, *device, Transport::automatic);
    const auto number = [&](int pp, int dp, int tp) {
      return std::to_string(mesh.rank({pp, dp, tp}));
    };
    const std::string me = std::to_string(rank);
    using Texts = std::vector<std::string>;
    EXPECT_EQ(links.tensor->gather_text(me),
              (Texts{number(here.pp, here.dp, 0), number(here.pp, here.dp, 1)}));
    EXPECT_EQ(links.data->gather_text(me),
              (Texts{number(here.pp, 0, here.tp), number(here.pp, 1, here.tp)}));
    EXPECT_EQ(links.norm->gather_text(me)[5], "5");
    for (const auto& [edge, link] : links.edges) {
      if (link == nullptr) continue;
      EXPECT_EQ(link->gather_text(me), (Texts{number(edge.first, here.dp, here.tp),
                                              number(edge.second, here.dp, here.tp)}));
    }
  };
  spawn_ranks(12, check);
  spawn_ranks(12, check_members);
  for (int rank = 0; rank < 12; ++rank) check(make_dry_communicator(rank, 12));
}

TEST(Links, RefuseWhatDoesNotFitTheMesh) {
  const auto links_of = [](Mesh mesh, std::vector<std::pair<int, int>> edges) {
    const auto device = make_dry_device();
    make_links(make_dry_communicator(0, 4), mesh, edges, *device, Transport::automatic);
  };
  EXPECT_NO_THROW(links_of({2, 2, 1}, {{0, 1}, {1, 0}}));
  EXPECT_THROW(links_of({2, 1, 1}, {}), Error);
  EXPECT_THROW(links_of({2, 2, 1}, {{1, 0}, {0, 1}}), Error);
  EXPECT_THROW(links_of({2, 2, 1}, {{0, 2}}), Error);
  EXPECT_THROW(links_of({2, 2, 1}, {{1, 1}}), Error);
}

// The memory of these devices is the host's: its communicators take it as it is.
TEST(Transports, AreTheHostsOwnWhereMemoryIs) {
  const auto cpu = make_cpu_device(1), dry = make_dry_device();
  for (Device* device : {cpu.get(), dry.get()}) {
    for (Transport transport : {Transport::automatic, Transport::staged}) {
      auto host = make_solo();
      const Communicator* before = host.get();
      EXPECT_EQ(choose_transport(*host, *device, transport).transport, transport);
      EXPECT_EQ(choose_transport(*host, *device, transport).why, "");
      EXPECT_EQ(on_device(std::move(host), *device, transport).get(), before);
    }
    try {
      choose_transport(*make_solo(), *device, Transport::nccl);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input);
      EXPECT_NE(std::string(error.what()).find("parallel.transport = \"nccl\""), std::string::npos);
    }
  }
}

// No tensor's memory exists here: a dry communicator must not look at it.
TEST(Dry, CountsCallsAndBytesByKind) {
  const auto world = make_dry_communicator(5, 512);
  TestLane lane;
  void* nowhere = reinterpret_cast<void*>(0x1000);
  const TensorView one{nowhere, DType::f16, {1000, 1000}};
  const TensorView all{reinterpret_cast<void*>(0x100000000), DType::f16, {512, 1000, 1000}};
  world->all_reduce(one, Reduction::sum, lane);
  world->all_reduce(one, Reduction::sum, lane);
  world->reduce_scatter(all, one, Reduction::sum, lane);
  world->all_gather(one, all, lane);
  world->broadcast(one, 511, lane);
  const std::vector<Transfer> transfers = {{Direction::send, 6, one},
                                           {Direction::send, 5, one},
                                           {Direction::receive, 4, one},
                                           {Direction::receive, 5, one}};
  world->exchange(transfers, lane);
  EXPECT_THROW(world->reduce_scatter(one, one, Reduction::sum, lane), Error);
  world->barrier();
  EXPECT_EQ(world->gather_text("x").size(), 512u);
  const TrafficCounts& counts = traffic_of(*world);
  using Count = TrafficCounts::Count;
  EXPECT_EQ(counts[Traffic::all_reduce], (Count{2, 4'000'000}));
  EXPECT_EQ(counts[Traffic::reduce_scatter], (Count{1, 1'024'000'000}));
  EXPECT_EQ(counts[Traffic::all_gather], (Count{1, 1'024'000'000}));
  EXPECT_EQ(counts[Traffic::broadcast], (Count{1, 2'000'000}));
  EXPECT_EQ(counts[Traffic::send], (Count{1, 2'000'000}));
  EXPECT_EQ(counts[Traffic::receive], (Count{1, 2'000'000}));
  EXPECT_THROW(world->split(0, 0), Error);
  EXPECT_THROW(traffic_of(*make_solo()), Error);

  const auto alone = make_dry_communicator(0, 1);
  alone->all_reduce(one, Reduction::sum, lane);
  EXPECT_EQ(traffic_of(*alone)[Traffic::all_reduce], Count{});
}

}  // namespace
}  // namespace voltapile::testing
