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
// Of 21841 classes (ImageNet-21k) rows start at every offset; 1024 columns fill whole loads.
const Extents kExtents[] = {{1, 1, 1},     {3, 10, 1},    {5, 10, 4},   {16, 1000, 2}, {2, 7, 3},
                            {3, 21841, 1}, {2, 21841, 4}, {4, 1022, 1}, {3, 2048, 2}};

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

// The CPU sees a wrong label and fails the device; where the host cannot look, loss and gradient of
// that sample, and of no other, are not numbers, so that the step is seen to be bad.
TEST_P(CrossEntropy, a_label_out_of_range_does_not_go_unnoticed) {
  for (const double wrong : {4.0, -1.0}) {
    const Tensor logits = random(type(), {2, 4}), max = given(acc(), {2}, {1, 1}),
                 sums = poisoned(acc(), {2, 3}), labels = given(DType::i32, {2}, {1, wrong}),
                 dlogits = poisoned(type(), {2, 4});
    Targets targets;
    targets.labels = labels;
    targets.classes = 4;
    kernels().cross_entropy_sums(logits, 0, targets, max, sums, stream());
    if (GetParam().backend == Backend::cpu) {
      EXPECT_THROW(finish(), Error);
      return;
    }
    kernels().cross_entropy_backward(logits, 0, targets, max, sums, 1, nullptr, dlogits, stream());
    const Values got = read(sums), gradient = read(dlogits);
    EXPECT_TRUE(std::isfinite(got[1]) && std::isnan(got[4]));
    for (size_t i = 0; i < 4; ++i)
      EXPECT_TRUE(std::isfinite(gradient[i]) && std::isnan(gradient[4 + i])) << i;
  }
}

TEST_P(CrossEntropy, gradient_may_take_the_place_of_the_logits) {
  const Extents e = {3, 21841, 1};
  for (const Kind kind : {Kind::labels, Kind::soft}) {
    Problem p = make(e, kind, 0.125f);
    reduce(p);
    const Tensor apart = poisoned(type(), {e.batch, e.classes});
    kernels().cross_entropy_backward(p.part[0], 0, p.targets, p.max, p.sums[0], 1, nullptr, apart,
                                     stream());
    kernels().cross_entropy_backward(p.part[0], 0, p.targets, p.max, p.sums[0], 1, nullptr,
                                     p.part[0], stream());
    expect_equal(p.part[0], read(apart), "in place");
  }
}

TEST_P(CrossEntropy, sums_do_not_depend_on_where_rows_start) {
  const int64_t columns = 3001;
  const Tensor wide = random(type(), {3 * columns}, 6), labels = given(DType::i32, {1}, {17});
  Targets targets;
  targets.labels = labels;
  targets.classes = columns;
  targets.smoothing = 0.1f;
  Values first;
  for (const int64_t offset : {0, 1, 3, 4, 8}) {
    const TensorView row = wide.view.slice_flat(offset, offset + columns).reshaped({1, columns});
    const Tensor max = poisoned(acc(), {1}), sums = poisoned(acc(), {1, 3});
    device().copy(row.data, wide.view.slice_flat(2 * columns, 3 * columns).data, row.bytes(),
                  stream());
    kernels().logits_max(row, 0, columns, max, stream());
    kernels().cross_entropy_sums(row, 0, targets, max, sums, stream());
    if (first.empty()) first = read(sums);
    expect_equal(sums, first, "sums");
  }
}

VOLTAPILE_CONFORMANCE(CrossEntropy);

}  // namespace
}  // namespace voltapile::conformance
