// What a checkpoint's model says about pictures without labels: predictions.csv and predictions.h5.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/deck/deck.hpp"
#include "voltapile/train/trainer.hpp"

namespace voltapile {

// Classes that are told of each picture; fewer where the model has fewer.
inline constexpr int kToldClasses = 5;

// The most probable classes, the first the most; of equal ones the lower number first. Class -1,
// probability 0: the model has no more.
struct Prediction {
  std::array<int32_t, kToldClasses> classes{};
  std::array<float, kToldClasses> probabilities{};
};

// The deck that a checkpoint was written by, with overrides, for a world of `ranks`: on one rank
// the mesh becomes one rank, whatever it was. Error(bad_data) for a checkpoint that cannot be read,
// Error(bad_input) for an override.
Deck deck_to_predict(const std::filesystem::path& checkpoint,
                     const std::vector<std::string>& overrides, int ranks);

struct PredictRequest {
  std::filesystem::path checkpoint;  // a step folder, or a run folder: its latest
  std::filesystem::path pictures;    // as open_pictures() takes them
  std::filesystem::path out;         // folder of the two files; made if it is not there
  std::vector<std::string> overrides;
};
struct Predicted {
  std::filesystem::path checkpoint;  // the step folder
  int64_t pictures = 0, step = 0;
  bool averaged = false;  // by the averaged weights, which the deck keeps (optimizer.ema)
  std::filesystem::path csv, h5;
};

// Each picture once, in the order of the file or of the folder's names, by the checkpoint's
// weights; the same on every mesh up to the order of summation. Rank 0 writes the files, each at
// once and whole. Collective; of the options `check`, `watch` and `facts` count.
// SharedError(bad_data) for damage, for pictures that do not fit the model, and where the model's
// output is not finite.
//
// predictions.csv: a line a picture, index, path where it is a file of its own, then class_K and
// probability_K, K = 1 to 5. The datasets of predictions.h5: index (N) i64, classes (N, 5) i32,
// probabilities (N, 5) f32, files (N) with a column path where they are files; its attributes:
// checkpoint, step, weights ("averaged" or "master"), pictures, deck. 5 is the number of classes
// where that is less.
Predicted predict(const PredictRequest& request, std::unique_ptr<Communicator> world,
                  const TrainOptions& options);

}  // namespace voltapile
