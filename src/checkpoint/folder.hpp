// The names in a checkpoints folder, and the moves that keep every visible checkpoint whole.
//
//   step_00000100            a whole checkpoint
//   step_00000100.partial    being written
//   step_00000100.replaced   the same step's older checkpoint, while the newer one takes its name
//   step_00000100.removed    being deleted
//   latest                   symlink to a whole checkpoint
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "voltapile/checkpoint/checkpoint.hpp"

namespace voltapile {

std::string step_name(int64_t step);

// Undoes what a killed run left: partial and removed folders go, a replaced one gets its name back
// if the newer one did not take it.
void tidy(const std::filesystem::path& checkpoints);

// Gives step_N.partial its name and moves `latest` to it; synced.
void publish_step(const std::filesystem::path& checkpoints, int64_t step);

// Steps of the whole checkpoints, ascending.
std::vector<int64_t> whole_steps(const std::filesystem::path& checkpoints);

// Moves `latest` to the checkpoint of `step`, and then removes those of later steps.
void go_back(const std::filesystem::path& checkpoints, int64_t step);

// Removes the checkpoints that `keep` does not name, but never the one that `latest` names. A
// folder that cannot be removed is a warning.
void prune(const std::filesystem::path& checkpoints, const Keep& keep);

}  // namespace voltapile
