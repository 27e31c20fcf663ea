// Cross-entropy with the classes divided over several ranks, which the test plays in turn.
#include <algorithm>

#include "rig.hpp"

namespace voltapile::conformance {
namespace {

struct Extents {
  int64_t batch, classes;
  int parts;  // ranks of the tensor axis
  int64_t local() const { return (classes + parts - 1) / parts; }
};
const Extents kExtents[] = {{1, 1, 1}, {3, 10, 1}, {5, 10, 4}, {16, 1000, 2}, {2, 7, 3}};

class CrossEntropy : public Conformance {
 protected:
  enum class Kind { labels, soft };
  struct Problem {
    Extents extents;
    Targets targets;
    Values weights;              // (B, K) of the whole target
    std::vector<int64_t> label;  // class of the greatest target
    Values logits;               // (B, K)
    std::vector<Tensor> part;    // (B, L) of each rank, padding filled with large numbers
    std::vector<Tensor> sums;
    Tensor max;
  };

  Problem make(const Extents& e, Kind kind, float smoothing) {
    Problem p;
    p.extents = e;
    p.targets.smoothing = smoothing;
    p.targets.classes = e.classes;
    const Tensor whole = random(type(), {e.batch, e.classes}, 6);
    p.logits = whole.values;
    p.weights.assign(whole.values.size(), smoothing / static_cast<double>(e.classes));
    if (kind == Kind::labels) {
      Values labels;
      for (int64_t b = 0; b < e.batch; ++b)
        labels.push_back(static_cast<double>((b * 7 + e.classes - 1) % e.classes));
      p.targets.labels = given(DType::i32, {e.batch}, labels);
      for (int64_t b = 0; b < e.batch; ++b) {
        p.label.push_back(static_cast<int64_t>(labels[b]));
        p.weights[b * e.classes + p.label.back()] += 1 - smoothing;
      }
    } else {
      Values soft = random(DType::f32, {e.batch, e.classes}).values;
      for (int64_t b = 0; b < e.batch; ++b) {
        double sum = 0;
        for (int64_t k = 0; k < e.classes; ++k) {
          double& v = soft[b * e.classes + k];
          v = v * v + 0.1;
          sum += v;
        }
        for (int64_t k = 0; k < e.classes; ++k) soft[b * e.classes + k] /= sum;
      }
      const Tensor placed = given(DType::f32, {e.batch, e.classes}, soft);
      p.targets.probabilities = placed;
      for (int64_t b = 0; b < e.batch; ++b) {
        const double* row = &placed.values[b * e.classes];
        p.label.push_back(std::max_element(row, row + e.classes) - row);
        for (int64_t k = 0; k < e.classes; ++k)
          p.weights[b * e.classes + k] += (1 - smoothing) * row[k];
      }
    }
    for (int r = 0; r < e.parts; ++r) {
      Values local;
      for (int64_t b = 0; b < e.batch; ++b)
        for (int64_t c = 0; c < e.local(); ++c) {
          const int64_t k = r * e.local() + c;
          local.push_back(k < e.classes ? p.logits[b * e.classes + k] : 1000.0);
        }
      p.part.push_back(given(type(), {e.batch, e.local()}, local));
    }
    return p;
  }

  // Maximum and sums, reduced over the ranks as the tensor axis would.
  void reduce(Problem& p) {
    const Extents& e = p.extents;
    Values most(static_cast<size_t>(e.batch), -INFINITY),
        sums(static_cast<size_t>(3 * e.batch), 0.0);
    for (int r = 0; r < e.parts; ++r) {
      const Tensor max = poisoned(acc(), {e.batch});
      kernels().logits_max(p.part[r], r * e.local(), e.classes, max, stream());
      const Values got = read(max);
      for (int64_t b = 0; b < e.batch; ++b) most[b] = std::max(most[b], got[b]);
    }
    p.max = given(acc(), {e.batch}, most);
    for (int r = 0; r < e.parts; ++r) {
      const Tensor local = poisoned(acc(), {e.batch, 3});
      kernels().cross_entropy_sums(p.part[r], r * e.local(), p.targets, p.max, local, stream());
      const Values got = read(local);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += got[i];
    }
    p.sums.push_back(given(acc(), {e.batch, 3}, sums));
  }

  // Of every sample: loss, and (B, K) probabilities.
  static Values losses(const Problem& p, Values& probabilities) {
    const Extents& e = p.extents;
    Values loss;
    probabilities.resize(p.logits.size());
    for (int64_t b = 0; b < e.batch; ++b) {
      const double* x = &p.logits[b * e.classes];
      const double most = *std::max_element(x, x + e.classes);
      double sum = 0, target = 0;
      for (int64_t k = 0; k < e.classes; ++k) sum += std::exp(x[k] - most);
      for (int64_t k = 0; k < e.classes; ++k) {
        probabilities[b * e.classes + k] = std::exp(x[k] - most) / sum;
        target += p.weights[b * e.classes + k] * (x[k] - most);
      }
      loss.push_back(std::log(sum) - target);
    }
    return loss;
  }

  template <class F>
  void for_problems(F f) {
    for (const Extents& e : kExtents)
      for (Kind kind : {Kind::labels, Kind::soft})
        for (float smoothing : {0.0f, 0.125f}) {
          Problem p = make(e, kind, smoothing);
          reduce(p);
          f(p);
        }
  }
};

TEST_P(CrossEntropy, loss_counts_valid_samples_only_and_adds) {
  for_problems([&](Problem& p) {
    Values probabilities;
    const Values loss = losses(p, probabilities);
    for (const int64_t valid : {p.extents.batch, p.extents.batch - 1, p.extents.batch + 3}) {
      const Tensor total = given(DType::f64, {1}, {2.5});
      kernels().cross_entropy_loss(p.sums[0], valid, total, stream());
      double wanted = 2.5;
      for (int64_t b = 0; b < std::min(valid, p.extents.batch); ++b) wanted += loss[b];
      expect_near(total, {wanted}, "loss");
    }
  });
}

TEST_P(CrossEntropy, gradient_is_softmax_less_target_and_zero_in_the_padding) {
  StepState state;
  state.loss_scale = 8;
  const StepState* placed = place(state);
  for_problems([&](Problem& p) {
    const Extents& e = p.extents;
    Values probabilities;
    losses(p, probabilities);
    for (int r = 0; r < e.parts; ++r) {
      const Tensor plain = poisoned(type(), {e.batch, e.local()}),
                   scaled = poisoned(type(), {e.batch, e.local()});
      kernels().cross_entropy_backward(p.part[r], r * e.local(), p.targets, p.max, p.sums[0], 0.25,
                                       nullptr, plain, stream());
      kernels().cross_entropy_backward(p.part[r], r * e.local(), p.targets, p.max, p.sums[0], 0.25,
                                       placed, scaled, stream());
      Values wanted, wanted_scaled;
      for (int64_t b = 0; b < e.batch; ++b)
        for (int64_t c = 0; c < e.local(); ++c) {
          const int64_t k = r * e.local() + c;
          wanted.push_back(k < e.classes ? 0.25 * (probabilities[b * e.classes + k] -
                                                   p.weights[b * e.classes + k])
                                         : 0.0);
          wanted_scaled.push_back(8 * wanted.back());
        }
      if (e.classes == 1) {
        expect_equal(plain, Values(wanted.size(), 0.0), "one class");
        continue;
      }
      expect_near(plain, wanted, "gradient");
      expect_near(scaled, wanted_scaled, "scaled gradient");
    }
  });
}

TEST_P(CrossEntropy, rank_of_the_label_breaks_ties_by_class) {
  for_problems([&](Problem& p) {
    const Extents& e = p.extents;
    // Ties: the label's logit again in two other classes, one before and one after it.
    for (int64_t b = 0; b < e.batch; ++b)
      for (const int64_t other : {p.label[b] - 2, p.label[b] + 1})
        if (0 <= other && other < e.classes) {
          p.logits[b * e.classes + other] = p.logits[b * e.classes + p.label[b]];
          Tensor& part = p.part[other / e.local()];
          part.values[b * e.local() + other % e.local()] = p.logits[b * e.classes + other];
          part = given(type(), part.view.shape, part.values);
        }
    p.sums.clear();
    reduce(p);
    Values wanted(static_cast<size_t>(e.batch), 0.0), got(wanted.size(), 0.0);
    for (int64_t b = 0; b < e.batch; ++b) {
      const double at_label = p.logits[b * e.classes + p.label[b]];
      for (int64_t k = 0; k < e.classes; ++k) {
        const double x = p.logits[b * e.classes + k];
        wanted[b] += x > at_label || (x == at_label && k < p.label[b]);
      }
    }
    for (int r = 0; r < e.parts; ++r) {
      const Tensor rank = poisoned(acc(), {e.batch});
      kernels().count_before_label(p.part[r], r * e.local(), p.targets, p.max, p.sums[0], rank,
                                   stream());
      const Values local = read(rank);
      for (int64_t b = 0; b < e.batch; ++b) got[b] += local[b];
    }
    EXPECT_EQ(got, wanted);
  });
}

TEST_P(CrossEntropy, correct_samples_are_counted_at_one_and_five) {
  const Tensor rank = given(acc(), {8}, {0, 1, 4, 5, 0, 30, 0, 2}),
               totals = given(DType::f64, {2}, {10, 20});
  kernels().count_correct(rank, 6, totals, stream());
  expect_equal(totals, {12, 24}, "top 1 and top 5");
  kernels().count_correct(rank, 100, totals, stream());
  expect_equal(totals, {15, 30}, "all eight");
}

TEST_P(CrossEntropy, a_label_out_of_range_fails_the_device) {
  const Tensor logits = random(type(), {2, 4}), max = random(acc(), {2}),
               sums = poisoned(acc(), {2, 3}), labels = given(DType::i32, {2}, {1, 4});
  Targets targets;
  targets.labels = labels;
  targets.classes = 4;
  if (GetParam().backend != Backend::cpu) GTEST_SKIP() << "checked where labels are read";
  kernels().cross_entropy_sums(logits, 0, targets, max, sums, stream());
  EXPECT_THROW(finish(), Error);
}

VOLTAPILE_CONFORMANCE(CrossEntropy);

}  // namespace
}  // namespace voltapile::conformance
