// Weights to and from other programs as safetensors files, and two checkpoints compared.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "voltapile/base/dtype.hpp"
#include "voltapile/deck/deck.hpp"

namespace voltapile {

struct Exported {
  int64_t tensors = 0, bytes = 0;  // of the file
};
// Writes the master weights of a step folder under timm's names, rounded to `type` (f32, f16,
// bf16); docs/FILES.md lists the metadata. One tensor at a time is in memory; `file` appears whole
// or not at all. Error(bad_data): the checkpoint is damaged; Error(bad_input): a weight is beyond
// f16; Error(failure): the file cannot be written.
Exported export_weights(const std::filesystem::path& checkpoint, const std::filesystem::path& file,
                        DType type);

struct Imported {
  std::filesystem::path checkpoint;
  std::vector<std::string> notes;  // what was not taken over one to one
};
// Makes a checkpoint of step 0 from a file with timm's or HuggingFace's ViT names: weights of the
// file, moments zero, the rest as in a new run of this deck. The whole model is in memory, in f32.
//
// * The position embedding of another grid is resized as timm's resample_abs_pos_embed does it:
//   bicubic (a = -0.5), antialiased. The old grid is the metadata's, else the deck's if the counts
//   agree, else a square.
// * A head for another number of classes, or none: a new head, with a new run's values.
// * pool = "mean": a class token and its position are left out, and `norm` stands in for `fc_norm`.
//
// `open_checkpoints` names the folder and is called once the file has been read and found to fit.
// Error(bad_data) lists every tensor that is missing, superfluous, or of a wrong type or shape, one
// a line.
Imported import_weights(const std::filesystem::path& file, const Deck& deck,
                        const std::function<std::filesystem::path()>& open_checkpoints);

enum class Compared { weights, weights_and_moments };

// A tensor whose values differ somewhere.
struct TensorDifference {
  std::string name;
  int64_t elements = 0;  // that differ
  double largest = 0;    // max |a - b|
  double relative = 0;   // that, over the largest magnitude in either tensor
};
struct CheckpointDifference {
  int64_t step_a = 0, step_b = 0;
  int64_t tensors = 0;  // in both, with one shape
  std::vector<TensorDifference> values;
  std::vector<std::string>
      others;  // names in one of them only, and shapes that differ; a line each
  bool equal() const { return values.empty() && others.empty(); }
};
// Whole tensors, whatever meshes wrote them. Steps are told, not compared. Error(bad_data) when one
// is damaged.
CheckpointDifference compare_checkpoints(const std::filesystem::path& a,
                                         const std::filesystem::path& b, Compared what);
std::string describe(const CheckpointDifference& difference);

}  // namespace voltapile
