// The commands on checkpoints and on files of weights. They print to the standard output; a folder
// may be a step's, or a run's, which stands for its latest checkpoint.
#pragma once
#include <string>

#include "voltapile/base/error.hpp"
#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/checkpoint/interchange.hpp"
#include "voltapile/deck/deck.hpp"

namespace voltapile {

ExitCode verify(const std::string& folder, Depth depth);
ExitCode export_file(const std::string& folder, const std::string& file, DType type);
// Error(bad_input) when the deck gives no plan.
ExitCode import_file(const std::string& file, const Deck& deck, bool fresh);
// bad_data when the two differ.
ExitCode show_difference(const std::string& a, const std::string& b, Compared what);

}  // namespace voltapile
