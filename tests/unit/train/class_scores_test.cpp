// The softmax of a class range that several ranks hold, and its greatest classes.
#include "class_scores.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"

namespace voltapile {
namespace {

struct Expected {
  std::vector<int32_t> classes;
  std::vector<double> probabilities;  // by class
};
Expected expected_of(const std::vector<float>& logits) {
  Expected e{std::vector<int32_t>(logits.size()), {}};
  std::iota(e.classes.begin(), e.classes.end(), 0);
  std::stable_sort(e.classes.begin(), e.classes.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  for (const float x : logits) e.probabilities.push_back(std::exp(static_cast<double>(x)) / sum);
  return e;
}

TEST(ClassScores, AreTheSoftmaxHoweverTheClassesAreDivided) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    const size_t classes = 1 + random() % 23;
    std::vector<float> logits(classes);
    // Few values, so that many are equal.
    for (float& x : logits) x = static_cast<float>(random() % 9) - 4;
    const Expected e = expected_of(logits);
    for (const size_t ranks : {1, 2, 3, 5}) {
      const size_t each = (classes + ranks - 1) / ranks;
      std::string sent;
      for (size_t begin = 0; begin < ranks * each; begin += each) {
        const size_t first = std::min(begin, classes), end = std::min(begin + each, classes);
        append_scores(
            score_classes({logits.data() + first, end - first}, static_cast<int32_t>(first), 0),
            sent);
      }
      const std::vector<ClassScores> parts = read_scores(sent);
      ASSERT_EQ(parts.size(), ranks);
      const Prediction p = predict_class(parts);
      for (size_t k = 0; k < kToldClasses; ++k) {
        ASSERT_EQ(p.classes[k], k < classes ? e.classes[k] : -1) << classes << " " << ranks;
        const double wanted = k < classes ? e.probabilities[static_cast<size_t>(e.classes[k])] : 0;
        ASSERT_NEAR(p.probabilities[k], wanted, 1e-6);
      }
    }
  }
}

TEST(ClassScores, StayFiniteForLogitsOfAnySize) {
  const std::vector<float> logits{3e38f, -3e38f, 2.9e38f};
  const ClassScores scores = score_classes(logits, 7, 0);
  const Prediction p = predict_class({&scores, 1});
  EXPECT_EQ(p.classes[0], 7);
  EXPECT_EQ(p.classes[1], 9);
  EXPECT_EQ(p.probabilities[0], 1);
  EXPECT_EQ(p.probabilities[2], 0);
}

TEST(ClassScores, WhatIsNotFiniteNamesPictureAndClass) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    try {
      score_classes(std::vector<float>{1, bad}, 10, 17);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_NE(std::string(error.what()).find("picture 17, class 11"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace voltapile
