#include <algorithm>
#include <cmath>

#include "voltapile/base/philox.hpp"
#include "voltapile/model/chunk_model.hpp"

namespace voltapile {
namespace {

// Element (token, column) of the fixed 2-D sine-cosine table that MoCo v3 and MAE use (Chen et al.
// 2021, arXiv:2104.02057; He et al. 2021, arXiv:2111.06377). With q = C/4 frequencies
// w_i = 10000^(-i/q), the columns are sin(x w), cos(x w), sin(y w), cos(y w), where (x, y) is the
// patch's place in the grid; the class token's row is zero.
double sine2d(const Architecture& a, int64_t token, int64_t column) {
  const int64_t patch = token - (a.tokens() - a.patches());
  if (patch < 0) return 0;
  const int64_t quarter = a.model.dim / 4;
  const int64_t x = patch % a.grid_width(), y = patch / a.grid_width();
  const auto place = static_cast<double>(column < 2 * quarter ? x : y);
  const double frequency =
      std::pow(10000.0, -static_cast<double>(column % quarter) / static_cast<double>(quarter));
  const bool is_sine = column / quarter % 2 == 0;
  return is_sine ? std::sin(place * frequency) : std::cos(place * frequency);
}

// Value of the element with this index in the whole tensor.
double initial_value(const Architecture& a, const Parameter& p, uint64_t seed, int64_t index) {
  switch (p.initial) {
    case Initial::zeros: return 0;
    case Initial::ones: return 1;
    case Initial::layer_scale: return a.model.layer_scale;
    case Initial::sine2d: return sine2d(a, index / a.model.dim, index % a.model.dim);
    case Initial::truncated_normal:
      return a.model.initial_std * truncated_normal(seed, p.id, static_cast<uint64_t>(index));
  }
  return 0;
}

template <class T>
void fill(const Architecture& a, const Parameter& p, uint64_t seed, int tp, int tp_rank,
          int64_t first, const TensorView& values, ThreadPool& pool) {
  const int64_t whole_columns = p.shape.elements() / p.shape[0];
  const Shape local = local_shape(p, tp);
  const int64_t columns = local.elements() / local[0], last = first + values.elements();
  T* const data = values.as<T>();
  std::fill_n(data, values.elements(), T{0});
  for (const Rectangle& r : placement(p, tp, tp_rank)) {
    const int64_t first_row = std::max(first / columns - r.local_row, int64_t{0});
    const int64_t end_row = std::min((last - 1) / columns + 1 - r.local_row, r.rows);
    pool.for_each_range(end_row - first_row, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = first_row + begin; row < first_row + end; ++row) {
        const int64_t place = (r.local_row + row) * columns + r.local_column;
        const int64_t whole = (r.whole_row + row) * whole_columns + r.whole_column;
        const int64_t stop = std::min(r.columns, last - place);
        for (int64_t column = std::max(first - place, int64_t{0}); column < stop; ++column)
          data[place + column - first] = static_cast<T>(initial_value(a, p, seed, whole + column));
      }
    });
  }
}

}  // namespace

void initial_values(const Architecture& architecture, const Parameter& p, uint64_t seed, int tp,
                    int tp_rank, int64_t begin, TensorView values, ThreadPool* pool) {
  const Shape local = local_shape(p, tp);
  VP_CHECK(0 <= begin && begin + values.elements() <= local.elements(),
           "{} elements of {} {} at {}", values.elements(), p.name, local.text(), begin);
  if (values.elements() == 0) return;
  if (p.initial == Initial::sine2d && architecture.model.dim % 4 != 0) {
    throw Error(ExitCode::bad_input,
                format("model.dim = {} does not divide by 4, as model.position = \"sine2d\" needs: "
                       "choose another width or position = \"learned\"",
                       architecture.model.dim));
  }
  ThreadPool caller_alone(1);
  ThreadPool& workers = pool != nullptr ? *pool : caller_alone;
  if (values.dtype == DType::f64)
    fill<double>(architecture, p, seed, tp, tp_rank, begin, values, workers);
  else fill<float>(architecture, p, seed, tp, tp_rank, begin, values, workers);
}

}  // namespace voltapile
