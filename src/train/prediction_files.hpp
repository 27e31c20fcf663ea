// Private to train: predictions.csv and predictions.h5, as predict.hpp describes them.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "voltapile/train/predict.hpp"

namespace voltapile {

struct PredictionFacts {
  std::string checkpoint, weights, pictures, deck;
  int64_t step = 0, classes = 0;   // of the model
  std::vector<std::string> paths;  // of each picture; none where they are not files
};
// Error(failure) names the file that could not be written.
void write_csv(const std::filesystem::path& file, std::span<const Prediction> predictions,
               const PredictionFacts& facts);
void write_h5(const std::filesystem::path& file, std::span<const Prediction> predictions,
              const PredictionFacts& facts);

}  // namespace voltapile
