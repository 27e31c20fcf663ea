// Memory by name: a column for each kind of rank.
#pragma once
#include <string>
#include <string_view>

#include "voltapile/plan/plan.hpp"

namespace voltapile {

std::string memory_table(const Plan& plan, size_t columns, std::string_view indent);

}  // namespace voltapile
