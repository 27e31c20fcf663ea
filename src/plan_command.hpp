// `voltapile plan`, and what of a plan every command that runs it asks first.
#pragma once
#include <string>
#include <vector>

#include "voltapile/base/error.hpp"
#include "voltapile/plan/plan.hpp"

namespace voltapile {

// Error(bad_input) with everything that the deck asks and this build cannot do.
void require_possible(const Plan& plan);
// The same, and Error(does_not_fit) where this machine's memory, now, is too small.
void require_trainable(const Plan& plan);

// Prints the page; then Error(does_not_fit) where the deck's own limits are passed. Without a
// hardware file a V100's figures are taken.
ExitCode show_plan(const std::string& deck, const std::vector<std::string>& overrides,
                   const std::string& hardware_file);

}  // namespace voltapile
