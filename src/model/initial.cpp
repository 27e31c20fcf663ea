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
          const TensorView& local, ThreadPool& pool) {
  const int64_t whole_columns = p.shape.elements() / p.shape[0];
  const int64_t local_columns = local.elements() / local_shape(p, tp)[0];
  T* data = local.as<T>();
  std::fill_n(data, local.elements(), T{0});
  for (const Rectangle& r : placement(p, tp, tp_rank)) {
    pool.for_each_range(r.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t whole = (r.whole_row + row) * whole_columns + r.whole_column;
        T* const out = data + (r.local_row + row) * local_columns + r.local_column;
        for (int64_t column = 0; column < r.columns; ++column)
          out[column] = static_cast<T>(initial_value(a, p, seed, whole + column));
      }
    });
  }
}

}  // namespace

void initial_values(const Architecture& architecture, const Parameter& p, uint64_t seed, int tp,
                    int tp_rank, TensorView local, ThreadPool* pool) {
  VP_CHECK(local.elements() == local_shape(p, tp).elements(), "{} elements of {} for {}",
           local.elements(), local_shape(p, tp).text(), p.name);
  if (p.initial == Initial::sine2d && architecture.model.dim % 4 != 0) {
    throw Error(ExitCode::bad_input,
                format("model.dim = {} does not divide by 4, as model.position = \"sine2d\" needs: "
                       "choose another width or position = \"learned\"",
                       architecture.model.dim));
  }
  ThreadPool caller_alone(1);
  ThreadPool& workers = pool != nullptr ? *pool : caller_alone;
  if (local.dtype == DType::f64) fill<double>(architecture, p, seed, tp, tp_rank, local, workers);
  else fill<float>(architecture, p, seed, tp, tp_rank, local, workers);
}

}  // namespace voltapile
