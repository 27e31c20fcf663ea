#include "class_scores.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "voltapile/base/error.hpp"

namespace voltapile {
namespace {

// Keeps the list sorted; classes come in ascending order, so an equal logit goes behind.
void insert(ClassScores& best, int32_t number, float logit) {
  size_t at = kToldClasses;
  while (at > 0 && (best.classes[at - 1] < 0 || logit > best.logits[at - 1])) --at;
  if (at == kToldClasses) return;
  std::move_backward(best.classes.begin() + static_cast<std::ptrdiff_t>(at), best.classes.end() - 1,
                     best.classes.end());
  std::move_backward(best.logits.begin() + static_cast<std::ptrdiff_t>(at), best.logits.end() - 1,
                     best.logits.end());
  best.classes[at] = number;
  best.logits[at] = logit;
}

ClassScores no_classes() {
  ClassScores none;
  none.max = -std::numeric_limits<float>::infinity();
  none.classes.fill(-1);
  return none;
}

}  // namespace

ClassScores score_classes(std::span<const float> logits, int32_t first_class, int64_t picture) {
  ClassScores scores = no_classes();
  for (size_t i = 0; i < logits.size(); ++i) {
    const int32_t number = first_class + static_cast<int32_t>(i);
    if (!std::isfinite(logits[i]))
      throw Error(ExitCode::bad_data,
                  format("the output for picture {}, class {}, is {}: the pictures overflow "
                         "precision.type (try --set precision.type=f32), or the weights are not "
                         "finite",
                         picture, number, logits[i]));
    scores.max = std::max(scores.max, logits[i]);
    insert(scores, number, logits[i]);
  }
  for (const float logit : logits)
    scores.sum += std::exp(static_cast<double>(logit) - static_cast<double>(scores.max));
  return scores;
}

Prediction predict_class(std::span<const ClassScores> parts) {
  ClassScores all = no_classes();
  for (const ClassScores& part : parts) {
    all.max = std::max(all.max, part.max);
    for (size_t i = 0; i < kToldClasses && part.classes[i] >= 0; ++i)
      insert(all, part.classes[i], part.logits[i]);
  }
  VP_CHECK(all.classes[0] >= 0, "a prediction from no class");
  const double max = all.max;
  for (const ClassScores& part : parts)
    if (part.sum > 0) all.sum += part.sum * std::exp(static_cast<double>(part.max) - max);
  Prediction prediction;
  prediction.classes = all.classes;
  for (size_t i = 0; i < kToldClasses && all.classes[i] >= 0; ++i)
    prediction.probabilities[i] =
        static_cast<float>(std::exp(static_cast<double>(all.logits[i]) - max) / all.sum);
  return prediction;
}

static_assert(std::is_trivially_copyable_v<ClassScores>);

void append_scores(const ClassScores& scores, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&scores), sizeof(scores));
}

std::vector<ClassScores> read_scores(const std::string& bytes) {
  VP_CHECK(bytes.size() % sizeof(ClassScores) == 0, "{} bytes of scores", bytes.size());
  std::vector<ClassScores> scores(bytes.size() / sizeof(ClassScores));
  if (!bytes.empty()) std::memcpy(scores.data(), bytes.data(), bytes.size());
  return scores;
}

}  // namespace voltapile
