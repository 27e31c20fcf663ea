// Private to train: filling a rank's weights and moments, and handing them to the checkpoint
// writer.
#pragma once
#include <filesystem>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/train/engine.hpp"

namespace voltapile {

// Weights by Philox, made by `threads` threads; moments zero.
void initialise(RankContext& context, int threads);
// Weights of every rank from a checkpoint; moments too when `with_moments`.
enum class Restore { weights, everything };
void restore(RankContext& context, const std::filesystem::path& checkpoint, Restore what);
// Which weights the program computes with: the master weights rounded, or, to evaluate, their
// moving average. Collective over the data axis; every lane must be idle.
enum class Shown { master, averaged };
void show_weights(RankContext& context, Shown which);
// This rank's part of a checkpoint, in host memory: one buffer a chunk and part of its state, or
// the state itself where that is at home.
struct StagedState {
  std::vector<Buffer> memory;
  std::vector<Piece> pieces;
};
// Fills `staged`, whose memory is allocated the first time. Every lane must be idle, and stay so
// until the state has been written where it is itself at home on the host.
void stage(RankContext& context, StagedState& staged);
// Collective over `link`, which has all ranks.
std::filesystem::path write(const RankContext& context, Communicator& link,
                            const StagedState& staged, const std::filesystem::path& checkpoints,
                            const RunState& state, int64_t keep_last);

}  // namespace voltapile
