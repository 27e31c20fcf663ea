#include <limits>

#include "voltapile/device/shapes.hpp"

#include "kernels.hpp"
#include "parallel.hpp"
#include "vector_math.hpp"

namespace voltapile::cpu {
namespace {

// Local columns that are classes; the others are padding.
int64_t real_columns(const TensorView& logits, int64_t first_class, int64_t classes) {
  return std::clamp<int64_t>(classes - first_class, 0, logits.columns());
}

// The targets of a sample over the local columns.
class Row {
 public:
  Row(const Targets& targets, int64_t sample, int64_t first_class) : targets_(targets) {
    if (targets.probabilities) {
      probabilities_ = targets.probabilities.as<float>() + sample * targets.classes;
      label_ = std::max_element(probabilities_, probabilities_ + targets.classes) - probabilities_;
      probabilities_ += first_class;
    } else {
      label_ = targets.labels.as<int32_t>()[sample];
      VP_CHECK(0 <= label_ && label_ < targets.classes, "label {} of sample {} is not in [0, {})",
               label_, sample, targets.classes);
    }
    label_ -= first_class;
  }
  // Local column of the class with the greatest target; may lie outside of the local ones.
  int64_t label() const { return label_; }
  // Every class has base() plus, with soft targets, weight() * soft(column), else weight() at the
  // label.
  double base() const { return targets_.smoothing / static_cast<double>(targets_.classes); }
  double weight() const { return 1.0 - targets_.smoothing; }
  const float* soft() const { return probabilities_; }

 private:
  const Targets& targets_;
  const float* probabilities_ = nullptr;
  int64_t label_ = 0;
};

template <class T>
void sums_of_row(const T* logits, int64_t n, const Row& row, Acc<T> max, Acc<T>* sums) {
  using A = Acc<T>;
  const A base = static_cast<A>(row.base()), weight = static_cast<A>(row.weight());
  // Runs of classes are summed in A, and the runs in double: one long sum in f32 would lose digits.
  constexpr int64_t kRun = 256;
  double exponentials = 0, total = 0, soft = 0;
  for (int64_t begin = 0; begin < n; begin += kRun) {
    const int64_t end = std::min(begin + kRun, n);
    A run_exponentials = 0, run_total = 0, run_soft = 0;
#pragma omp simd reduction(+ : run_exponentials, run_total)
    for (int64_t c = begin; c < end; ++c) {
      const A x = convert<T, A>(logits[c]) - max;
      run_exponentials += exp_of(x);
      run_total += x;
    }
    if (row.soft()) {
#pragma omp simd reduction(+ : run_soft)
      for (int64_t c = begin; c < end; ++c)
        run_soft += static_cast<A>(row.soft()[c]) * (convert<T, A>(logits[c]) - max);
    }
    exponentials += run_exponentials;
    total += run_total;
    soft += run_soft;
  }
  const bool here = 0 <= row.label() && row.label() < n;
  const A at_label = here ? convert<T, A>(logits[row.label()]) - max : A(0);
  const A target = row.soft() ? static_cast<A>(soft) : at_label;
  sums[0] = static_cast<A>(exponentials);
  sums[1] = weight * target + (base != 0 ? base * static_cast<A>(total) : A(0));
  sums[2] = at_label;
}

template <class T>
void gradient_of_row(const T* logits, int64_t n, int64_t columns, const Row& row, Acc<T> max,
                     Acc<T> sum, Acc<T> factor, T* out) {
  using A = Acc<T>;
  const A base = static_cast<A>(row.base()), weight = static_cast<A>(row.weight());
  const A inverse = 1 / sum;
  for (int64_t c = 0; c < n; ++c) {
    A target = base;
    if (row.soft()) target += weight * static_cast<A>(row.soft()[c]);
    else if (c == row.label()) target += weight;
    out[c] = convert<A, T>((exp_of(convert<T, A>(logits[c]) - max) * inverse - target) * factor);
  }
  for (int64_t c = n; c < columns; ++c) out[c] = convert<A, T>(0);
}

}  // namespace

void CpuKernels::logits_max(TensorView logits, int64_t first_class, int64_t classes, TensorView max,
                            Stream& stream) {
  shapes::logits_max(logits, max);
  launch(logits.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    using A = Acc<T>;
    const int64_t n = real_columns(logits, first_class, classes), stride = logits.columns();
    const T* data = logits.as<T>();
    A* out = max.as<A>();
    for_pieces(pool_, logits.rows(), row_grain(stride), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        A most = -std::numeric_limits<A>::infinity();
        for (int64_t c = 0; c < n; ++c) most = std::max(most, convert<T, A>(data[r * stride + c]));
        out[r] = most;
      }
    });
  });
}

void CpuKernels::cross_entropy_sums(TensorView logits, int64_t first_class, const Targets& targets,
                                    TensorView max, TensorView sums, Stream& stream) {
  shapes::cross_entropy("cross_entropy_sums", logits, targets, max, sums);
  launch(logits.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    using A = Acc<T>;
    const int64_t n = real_columns(logits, first_class, targets.classes);
    const int64_t stride = logits.columns();
    for_pieces(pool_, logits.rows(), row_grain(stride), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        sums_of_row(logits.as<T>() + r * stride, n, Row(targets, r, first_class), max.as<A>()[r],
                    sums.as<A>() + 3 * r);
    });
  });
}

void CpuKernels::cross_entropy_loss(TensorView sums, int64_t valid, TensorView total,
                                    Stream& stream) {
  shapes::expect("cross_entropy_loss", "total", total, DType::f64, 1);
  launch(sums.dtype, stream, [=](auto tag) {
    using T = decltype(tag);
    const T* s = sums.as<T>();
    double sum = 0;
    for (int64_t r = 0; r < std::min(valid, sums.elements() / 3); ++r)
      sum += std::log(convert<T, double>(s[3 * r])) - convert<T, double>(s[3 * r + 1]);
    *total.as<double>() += sum;
  });
}

void CpuKernels::cross_entropy_backward(TensorView logits, int64_t first_class,
                                        const Targets& targets, TensorView max, TensorView sums,
                                        double factor, const StepState* state, TensorView dlogits,
                                        Stream& stream) {
  shapes::cross_entropy("cross_entropy_backward", logits, targets, max, sums);
  shapes::expect("cross_entropy_backward", "dlogits", dlogits, logits.dtype, logits.elements());
  launch(logits.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    using A = Acc<T>;
    const int64_t n = real_columns(logits, first_class, targets.classes);
    const int64_t stride = logits.columns();
    const A scaled = static_cast<A>(factor * (state ? state->loss_scale : 1.0));
    for_pieces(pool_, logits.rows(), row_grain(stride), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        gradient_of_row(logits.as<T>() + r * stride, n, stride, Row(targets, r, first_class),
                        max.as<A>()[r], sums.as<A>()[3 * r], scaled, dlogits.as<T>() + r * stride);
    });
  });
}

void CpuKernels::count_before_label(TensorView logits, int64_t first_class, const Targets& targets,
                                    TensorView max, TensorView sums, TensorView rank,
                                    Stream& stream) {
  shapes::cross_entropy("count_before_label", logits, targets, max, sums);
  shapes::expect("count_before_label", "rank", rank, accumulate_type(logits.dtype), logits.rows());
  launch(logits.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    using A = Acc<T>;
    const int64_t n = real_columns(logits, first_class, targets.classes);
    const int64_t stride = logits.columns();
    for_pieces(pool_, logits.rows(), row_grain(stride), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* line = logits.as<T>() + r * stride;
        const int64_t label = Row(targets, r, first_class).label();
        const A at_label = sums.as<A>()[3 * r + 2], most = max.as<A>()[r];
        int64_t before = 0;
        for (int64_t c = 0; c < n; ++c) {
          const A x = convert<T, A>(line[c]) - most;
          // A logit that is not a number comes before every label: it is no right answer.
          before += (!(x <= at_label) || (x == at_label && c < label)) ? 1 : 0;
        }
        rank.as<A>()[r] = static_cast<A>(before);
      }
    });
  });
}

void CpuKernels::count_correct(TensorView rank, int64_t valid, TensorView totals, Stream& stream) {
  shapes::expect("count_correct", "totals", totals, DType::f64, 2);
  launch(rank.dtype, stream, [=](auto tag) {
    using T = decltype(tag);
    const T* r = rank.as<T>();
    double* out = totals.as<double>();
    for (int64_t i = 0; i < std::min(valid, rank.elements()); ++i) {
      out[0] += convert<T, double>(r[i]) < 1 ? 1 : 0;
      out[1] += convert<T, double>(r[i]) < 5 ? 1 : 0;
    }
  });
}

}  // namespace voltapile::cpu
