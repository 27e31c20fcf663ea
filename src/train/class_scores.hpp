// Private to train: the softmax of one picture and its most probable classes, put together from the
// tensor ranks' parts of the classes.
#pragma once
#include <span>
#include <string>

#include "voltapile/train/predict.hpp"

namespace voltapile {

struct ClassScores {  // of some consecutive classes
  float max = 0;      // greatest logit; -infinity without classes
  double sum = 0;     // of exp(logit - max)
  // The greatest first; of equal ones the lower class. Class -1 beyond the last.
  std::array<int32_t, kToldClasses> classes{};
  std::array<float, kToldClasses> logits{};
};

// Of logits of the classes from `first_class` on. `picture` is for Error(bad_data): not finite.
ClassScores score_classes(std::span<const float> logits, int32_t first_class, int64_t picture);
// Of parts in the order of their classes, at least one class in all.
Prediction predict_class(std::span<const ClassScores> parts);

// As bytes, to be sent; and back.
void append_scores(const ClassScores& scores, std::string& bytes);
std::vector<ClassScores> read_scores(const std::string& bytes);

}  // namespace voltapile
