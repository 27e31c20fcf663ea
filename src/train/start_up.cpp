#include "start_up.hpp"

#include <utility>

#include "voltapile/deck/parse.hpp"

namespace voltapile {

namespace {

// What all ranks must build alike: who holds what, in which order, and in how much memory.
std::string text_of(const Plan& plan) {
  std::string text = plan.mesh.text();
  for (const Chunk& chunk : plan.chunks)
    text += format(" {}-{}@{}/{}:{}", chunk.first_layer, chunk.end_layer, chunk.rank,
                   chunk.segment_layers, chunk.parameters.elements);
  for (const Phase* phase : {&plan.train, &plan.eval}) {
    for (const Program& program : phase->programs) {
      text += "\n";
      for (const Instruction& each : program)
        text += format("{} {} {} {};", static_cast<int>(each.op), static_cast<int>(each.lane),
                       each.chunk, each.micro);
    }
    for (const BufferPlan& buffers : phase->buffers)
      for (const ValuePool& pool : buffers.pools)
        for (const size_t bytes : pool.slot_bytes) text += format(" {}", bytes);
  }
  return text;
}

// Ranks whose deck differs from rank 0's, with their keys: worth sending the whole text for.
std::string differing_keys(const std::vector<std::string>& decks) {
  std::string lines;
  const Deck first = parse_deck(decks.front(), "deck of rank 0");
  for (size_t rank = 1; rank < decks.size(); ++rank) {
    if (decks[rank] == decks.front()) continue;
    const Deck other = parse_deck(decks[rank], "deck of another rank");
    for (const DeckDifference& change : compare_decks(first, other))
      lines += format("\n  {}: {} on rank 0, {} on rank {}", change.key, change.before,
                      change.after, rank);
  }
  return lines;
}

}  // namespace

void compare_programs(const Plan& plan, Communicator& world, std::vector<Fact> more) {
  const std::string deck = write_deck(plan.deck);
  std::vector<Fact> facts = build_facts();
  facts.push_back({.name = "deck", .value = digest(deck), .weight = Weight::fatal});
  facts.push_back({.name = "plan", .value = digest(text_of(plan)), .weight = Weight::fatal});
  facts.insert(facts.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  try {
    compare_ranks(world, facts);
  } catch (const SharedError& error) {
    throw SharedError(error.code(), error.what() + differing_keys(world.gather_text(deck)) +
                                        "\nStart all ranks with one program and one deck.");
  }
}

void compare_machines(const Plan& plan, Communicator& world, Device& device) {
  std::vector<Fact> facts = {{.name = "device",
                              .value = plan.deck.run.device == DeviceKind::cpu ? "cpu" : "cuda",
                              .weight = Weight::fatal},
                             {.name = "its kind", .value = device.describe()}};
  for (const auto& [name, version] : device.versions())
    facts.push_back({.name = name, .value = version});
  world.barrier();  // clocks are read at the same time
  for (Fact& fact : machine_facts()) facts.push_back(std::move(fact));
  compare_ranks(world, facts);
}

}  // namespace voltapile
