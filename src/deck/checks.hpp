// Rules that name two keys of the deck. What needs the mesh as a whole is the plan's.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "voltapile/deck/deck.hpp"

namespace voltapile {

// Reports that `key` breaks a rule, which also names `others`. The reader leaves a rule out when
// one of its keys has a fault of its own already.
using Report = std::function<void(const std::string& key, const std::vector<std::string>& others,
                                  const std::string& allowed)>;
void check_rules(const Deck& deck, const Report& report);

}  // namespace voltapile
