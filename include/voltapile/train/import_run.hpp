// A run that begins with the weights of a file.
#pragma once
#include <filesystem>

#include "voltapile/checkpoint/interchange.hpp"
#include "voltapile/deck/deck.hpp"

namespace voltapile {

// import_weights into the run folder of `deck` (fresh: into the next free <name>.N), which `train`
// then continues. The folder is touched only once the file is known to fit. Error(bad_input) when
// the run has results already, or RunFolder's; and import_weights' errors.
Imported import_run(const std::filesystem::path& file, const Deck& deck, bool fresh);

}  // namespace voltapile
