// Checkpoints: one HDF5 shard per rank, and index.h5 that presents whole tensors by virtual
// datasets with relative paths. A checkpoint appears whole or not at all: step_N.partial, fsync,
// rename, then `latest` is moved.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
  std::optional<double> multiplier;  // of the next step's gradients, where it is known already
  int64_t rewinds = 0;               // how often the run had diverged and gone back
  std::string deck;                  // resolved, as TOML
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

// Where a save takes a rank's values, a slab at a time, so that no second copy of all is needed.
class StateSource {
 public:
  struct Tensor {  // one part of pieces[piece]
    size_t piece = 0;
    TensorView Piece::*part = nullptr;
  };
  virtual ~StateSource() = default;
  // Whether averaged weights are among the parts.
  virtual bool averaged() const = 0;
  // Once, before the first take(): tensors with elements, in the order in which their values will
  // be asked for. A tensor that is listed before another piece's may have come after it among the
  // pieces: small ones fill gaps in a file.
  virtual void begin(const std::vector<Tensor>& order) = 0;
  // The next values in that order: some, all of one tensor. They stay until they are given back.
  // Empty: there is no room for more until something is; what is held is enough to go on with.
  virtual std::span<const float> take() = 0;
  // The oldest values that are held.
  virtual void give_back() = 0;
};

// Which checkpoints stay when a newer one is whole: those of the `last` highest steps (0: all), and
// those of multiples of `every` (0: none).
struct Keep {
  int64_t last = 0, every = 0;
};

// Collective over `world`. Writes <checkpoints>/step_%08d, whose parent folder must be there, moves
// `latest`, and removes what `keep` does not name. Returns the folder. Error(failure) names file
// and cause, on all ranks alike; the previous checkpoint stays intact. Files are written past the
// page cache; where a file system refuses that, this is said once a process.
//
// Values come from the pieces' views or, where there is a `source`, from it: views may then be
// empty. What it throws is the save's fault. `when_whole` is called on every rank once `latest` has
// moved; removing what is not kept comes after that, and may take a third as long as writing.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints, Communicator& world,
                                      const RunState& state, const std::vector<Parameter>& model,
                                      const PieceOwner& owner, const std::vector<Piece>& pieces,
                                      const Keep& keep, StateSource* source = nullptr,
                                      const std::function<void()>& when_whole = {});

// The folder that `latest` names, if any. Leftover *.partial folders are not looked at.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& checkpoints);

// A step folder as it is; a run folder or a folder of checkpoints stands for its latest.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& named);

// What is wrong with the bytes of a checkpoint: every rank reads its share of the shards, and all
// ranks learn all faults, a line each; empty = good. Collective.
std::vector<std::string> find_damage(const std::filesystem::path& checkpoint, Communicator& world);

enum class OnDamage { refuse, fall_back };
struct Chosen {
  std::filesystem::path folder;
  RunState state;
  std::vector<std::string> passed_over;  // newer ones that are damaged, and why; a line each
};
// The checkpoint that a run continues from: the one that `latest` names, if it is good. Where it is
// not, Error(bad_data) says what is wrong, or the good one of the highest step is taken; where none
// is good, Error(bad_data). Empty without `latest`. Collective, and the same on all ranks.
std::optional<Chosen> choose_checkpoint(const std::filesystem::path& checkpoints,
                                        Communicator& world, OnDamage on_damage);

// Makes `latest` name the undamaged checkpoint of the highest step up to `last`, and removes those
// of later steps, which belong to a course that the run gives up. Where there is none up to `last`,
// the first later one is taken: nothing says that it is bad. Returns its folder; empty where there
// is no checkpoint. Error(bad_data) where all are damaged. Collective, and the same on all ranks.
std::optional<std::filesystem::path> rewind_checkpoints(const std::filesystem::path& checkpoints,
                                                        int64_t last, Communicator& world);

RunState read_run_state(const std::filesystem::path& checkpoint);
// Reads pieces out of the whole tensors, whatever mesh wrote them; m, v and ema may be empty
// (evaluation). Without averaged weights in the checkpoint, ema is filled with the weights. Checks
// sizes and presence of every shard first. Error(bad_data) names the file or tensor.
class CheckpointReader {
 public:
  CheckpointReader(const std::filesystem::path& checkpoint, const PieceOwner& owner);
  ~CheckpointReader();
  void read(const std::vector<Piece>& pieces);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Every shard there with the listed size and digest, every whole tensor covered, no NaN fill. One
// line per finding; empty = good. Of a damaged shard each bad range of bytes is named with its
// tensor. Depth::datasets also reads each piece of a tensor by its name in its shard and compares
// its values' digest (format version 1 has none: no dataset is counted).
enum class Depth { files, datasets };
struct Verification {
  std::vector<std::string> faults;
  int64_t tensors = 0, shards = 0, bytes = 0, datasets = 0;
};
Verification verify_checkpoint(const std::filesystem::path& checkpoint, Depth depth = Depth::files);

}  // namespace voltapile
