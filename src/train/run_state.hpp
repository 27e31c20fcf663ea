// Private to train: filling a rank's weights and moments, and handing them to the checkpoint
// writer.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/train/engine.hpp"

namespace voltapile {

// Weights by Philox, made by `threads` threads; moments zero.
void initialise(RankContext& context, int threads);
// Weights out of deck.model.init, moments zero; returns what was not taken over one to one. A
// checkpoint there has been looked at for damage.
std::vector<std::string> take_weights(RankContext& context, int threads);
// Weights of every rank from a checkpoint, and what else the optimizer keeps.
enum class Restore { weights, everything };
void restore(RankContext& context, const std::filesystem::path& checkpoint, Restore what,
             int threads);
// Which weights the program computes with: the master weights rounded, or, to evaluate, their
// moving average. Collective over the data axis; every lane must be idle.
enum class Shown { master, averaged };
void show_weights(RankContext& context, Shown which);
// This rank's part of a checkpoint, copied from the device: one buffer a chunk and part of its
// state.
struct StagedState {
  std::vector<Buffer> memory;
  std::vector<Piece> pieces;
};
// Fills `staged`, whose memory is allocated the first time. Every lane must be idle.
void stage(RankContext& context, StagedState& staged);

}  // namespace voltapile
