// What the ranks of a job must have in common, compared before they begin.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "voltapile/comm/communicator.hpp"

namespace voltapile {

enum class Weight { warning, fatal };

struct Fact {
  std::string name, value;  // "free memory", "61.2 GB"; a line each
  Weight weight = Weight::warning;
  // Numbers differ only where they are further than the tolerance from the ranks' median.
  std::optional<double> number;
  double tolerance = 0;
};

// A short text that two long ones hardly ever share (FNV-1a, 64 bits).
std::string digest(std::string_view text);

// Of this program: version (fatal), build (the linker's id of the executable), compiler.
std::vector<Fact> build_facts();
// Of this machine, now: the CPU's name, free host memory, the time of day. To be called by all
// ranks at the same time, as after a barrier.
std::vector<Fact> machine_facts();

struct Differences {
  std::string table;  // lines: what, which ranks, their value; empty where nothing differs
  bool fatal = false;
};
// ranks: the facts of each, in the same order; a fact that a rank lacks differs.
Differences compare(const std::vector<std::vector<Fact>>& ranks);

// Collective. Rank 0 logs a warning with the table of what differs; SharedError(bad_input) with it
// where something fatal does.
void compare_ranks(Communicator& world, const std::vector<Fact>& mine);

// "ranks 0-3, 8" as "0-3, 8". Ascending.
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace voltapile
