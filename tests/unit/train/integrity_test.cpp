// Silent corruption: a bit that is flipped in a rank's memory is found, and the rank is named.
#include "integrity.hpp"

#include <gtest/gtest.h>

#include "voltapile/deck/parse.hpp"

#include "bit_digest.hpp"
#include "ready_engine.hpp"
#include "small_run.hpp"

namespace voltapile {
namespace {

using Copies = std::vector<RankCopies>;

RankCopies rank(const std::string& place, uint64_t digest, bool is_owner = false) {
  return {.place = place, .copies = {{"weights", digest, is_owner}}, .own_faults = {}};
}

TEST(Corruption, is_the_copy_that_differs_from_most) {
  EXPECT_TRUE(find_corruption({rank("a", 7), rank("b", 7), rank("c", 7)}).empty());
  EXPECT_EQ(find_corruption({rank("a", 7), rank("b", 8), rank("c", 7)}),
            std::vector<std::string>{"weights: b differ from the other 2 copies"});
}

TEST(Corruption, is_the_copy_that_differs_from_its_owner) {
  EXPECT_EQ(find_corruption({rank("a", 7), rank("b", 8, true)}),
            std::vector<std::string>{"weights: a differ from their owner's, b"});
}

TEST(Corruption, may_be_on_either_of_two_ranks_and_that_is_said) {
  const auto found = find_corruption({rank("a", 7), rank("b", 8)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("nothing says which"), std::string::npos) << found[0];
  EXPECT_NE(found[0].find("a"), std::string::npos);
  EXPECT_NE(found[0].find("b"), std::string::npos);
}

TEST(BitDigest, changes_with_any_bit) {
  std::vector<std::byte> data(77, std::byte{3});
  const auto digest = [&] {
    BitDigest bits;
    bits.add(data.data(), data.size());
    return bits.value();
  };
  const uint64_t before = digest();
  for (std::byte& byte : data) {
    for (int bit = 0; bit < 8; ++bit) {
      byte ^= std::byte{1} << bit;
      EXPECT_NE(digest(), before);
      byte ^= std::byte{1} << bit;
    }
  }
  EXPECT_EQ(digest(), before);
}

// What to harm on which rank, between two steps, and what the check must say.
enum class Part { nothing, weights, master, second_moment };
std::string checked(std::vector<std::string> layout, Part part, int victim) {
  layout.push_back("data.synthetic_test=0");
  const Plan plan = make_plan(parse_deck(testing::kSmallDeck, "test.toml", layout));
  std::string said;
  const auto job = [&](std::unique_ptr<Communicator> world) {
    testing::ReadyEngine ready(plan, std::move(world));
    RankContext& context = ready.context;
    Engine& engine = ready.engine;
    ready.issue();
    engine.wait_for_step();
    engine.drain();
    Integrity integrity(context, *ready.links.world);
    for (size_t i = 0; i < context.chunks().size(); ++i) integrity.check(engine, 1);
    if (ready.rank == victim && part != Part::nothing) {
      const int chunk = context.chunks().front();
      const TensorView t = part == Part::weights  ? context.weights(chunk)
                           : part == Part::master ? context.state(chunk, StatePart::master)
                                                  : context.state(chunk, StatePart::v);
      static_cast<uint8_t*>(t.data)[t.bytes() / 2 + 1] ^= 4;
    }
    try {
      integrity.check(engine, 1);
    } catch (const SharedError& error) {
      EXPECT_EQ(error.code(), ExitCode::failure);
      if (ready.rank == 0) said = error.what();
    }
  };
  spawn_ranks(plan.mesh.size(), job);
  return said;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Integrity, finds_nothing_wrong_on_any_layout) {
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{},
        {"parallel.data=2", "parallel.tensor=2"},
        {"parallel.pipeline=2", "parallel.chunks=2", "parallel.data=2", "optimizer.zero=0"},
        {"parallel.pipeline=2", "parallel.tensor=2", "precision.type=bf16",
         "parallel.sequence=true"},
        {"parallel.data=2", "precision.type=f16", "memory.recompute=layers",
         "model.drop_path=0.5"}})
    EXPECT_EQ(checked(layout, Part::nothing, 0), "") << join(layout, " ");
}

TEST(Integrity, names_the_data_rank_with_a_flipped_bit_in_a_weight) {
  for (int victim = 0; victim < 2; ++victim) {
    const std::string said = checked({"parallel.data=2"}, Part::weights, victim);
    EXPECT_TRUE(holds(said, format("rank {} (pp0 dp{} tp0) on ", victim, victim))) << said;
    EXPECT_TRUE(holds(said, "weights of chunk 0")) << said;
  }
  const std::string said =
      checked({"parallel.data=4", "optimizer.zero=0", "batch.global=8"}, Part::weights, 2);
  EXPECT_TRUE(holds(said, "weights of chunk 0, part 0 (pp0 tp0): rank 2 (pp0 dp2 tp0)")) << said;
}

TEST(Integrity, names_the_data_rank_with_a_flipped_bit_in_its_optimizer_state) {
  for (Part part : {Part::master, Part::second_moment}) {
    const std::string said = checked({"parallel.data=4", "optimizer.zero=0"}, part, 1);
    EXPECT_TRUE(holds(said, "rank 1 (pp0 dp1 tp0)")) << said;
    EXPECT_TRUE(holds(said, "differ from the other 3 copies")) << said;
  }
}

TEST(Integrity, says_so_when_two_ranks_cannot_tell_which_is_right) {
  const std::string said = checked({"parallel.data=2", "optimizer.zero=0"}, Part::second_moment, 1);
  EXPECT_TRUE(holds(said, "nothing says which")) << said;
}

TEST(Integrity, finds_a_tensor_rank_whose_parameters_differ_from_its_peers) {
  const std::string said = checked({"parallel.tensor=4"}, Part::weights, 3);
  EXPECT_TRUE(holds(said, "rank 3 (pp0 dp0 tp3)")) << said;
}

// A device that computes something else each time it is asked.
TEST(Integrity, finds_a_chunk_that_is_computed_with_other_bits) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the fault is a race, and meant as one";
#endif
  const Plan plan = make_plan(parse_deck(testing::kSmallDeck, "test.toml", {}));
  testing::ReadyEngine ready(plan, make_solo());
  Engine& engine = ready.engine;
  ready.issue();
  engine.wait_for_step();
  engine.drain();
  EXPECT_TRUE(engine.repeats(0));
  std::atomic<bool> over = false;
  auto* weight = static_cast<uint32_t*>(ready.context.weights(0).data) + 5;
  std::thread harm([&] {
    while (!over) __atomic_fetch_xor(weight, 1u << 23, __ATOMIC_RELAXED);
  });
  bool same = true;
  for (int i = 0; same && i < 200; ++i) same = engine.repeats(0);
  over = true;
  harm.join();
  EXPECT_FALSE(same);
}

}  // namespace
}  // namespace voltapile
