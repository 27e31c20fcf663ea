// Checkpoints: one HDF5 shard per rank, and index.h5 that presents whole tensors by virtual
// datasets with relative paths. A checkpoint appears whole or not at all: step_N.partial, fsync,
// rename, then `latest` is moved.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "voltapile/architecture/architecture.hpp"
#include "voltapile/comm/communicator.hpp"

namespace voltapile {

struct RunState {       // everything that is not per parameter
  int64_t step = 0;     // steps done
  int64_t samples = 0;  // samples seen
  uint64_t seed = 0;
  double loss_scale = 1;
  int64_t good_steps = 0, adam_step = 0, skipped_steps = 0;
  std::string deck;  // resolved, as TOML
};

// One rank's piece of one parameter: elements [begin, end) of the flattened local tensor. Pieces of
// all ranks together cover each whole tensor once. Host memory, acc type (f32).
struct Piece {
  const Parameter* parameter = nullptr;
  int64_t begin = 0, end = 0;
  TensorView master, m, v;  // (end - begin) each
  TensorView ema;           // the same, where averaged weights are kept
};
struct PieceOwner {
  int tp = 1, tp_rank = 0;
};

// Collective over `world`. Writes <checkpoints>/step_%08d and moves `latest`. Removes the oldest
// ones so that keep_last stay (0 = keep all). Returns the folder. Error(failure) names file and
// cause; the previous checkpoint stays intact.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints, Communicator& world,
                                      const RunState& state, const std::vector<Parameter>& model,
                                      const PieceOwner& owner, const std::vector<Piece>& pieces,
                                      int64_t keep_last);

// The folder that `latest` names, if any. Leftover *.partial folders are not looked at.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& checkpoints);

// A step folder as it is; a run folder or a folder of checkpoints stands for its latest.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& named);

RunState read_run_state(const std::filesystem::path& checkpoint);
// Reads this rank's pieces out of the whole tensors, whatever mesh wrote them; m, v and ema may be
// empty (evaluation). Without averaged weights in the checkpoint, ema is filled with the weights.
// Checks sizes and presence of every shard first. Error(bad_data) names the file or tensor.
void load_checkpoint(const std::filesystem::path& checkpoint, const PieceOwner& owner,
                     const std::vector<Piece>& pieces);

// Every shard there with the listed size and digest, every whole tensor covered, no NaN fill. One
// line per finding; empty = good.
struct Verification {
  std::vector<std::string> faults;
  int64_t tensors = 0, shards = 0, bytes = 0;
};
Verification verify_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace voltapile
