// Memory by name: a column for each kind of rank.
#pragma once
#include <string>
#include <string_view>

#include "voltapile/deck/hardware.hpp"
#include "voltapile/plan/plan.hpp"

namespace voltapile {

// With `hardware` that was measured, also what the driver holds besides.
std::string memory_table(const Plan& plan, const Hardware& hardware, size_t columns,
                         std::string_view indent);

}  // namespace voltapile
