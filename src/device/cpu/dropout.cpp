#include "voltapile/base/philox.hpp"
#include "voltapile/device/shapes.hpp"

#include "kernels.hpp"
#include "parallel.hpp"

namespace voltapile::cpu {
namespace {

// The numbers of elements in increasing order: four come from one draw.
class Uniform {
 public:
  explicit Uniform(const Dropout& drop) : drop_(drop) {}
  float operator()(uint64_t element) {
    if (element / 4 != drawn_) {
      drawn_ = element / 4;
      words_ = random_words(drop_.seed, Purpose::dropout, drop_.item, drawn_);
    }
    return uniform01(words_[element % 4]);
  }

 private:
  const Dropout& drop_;
  uint64_t drawn_ = ~uint64_t{0};
  std::array<uint32_t, 4> words_{};
};

template <class T>
void dropout_all(ThreadPool& pool, const T* x, const Dropout& drop, T* y, int64_t rows,
                 int64_t columns) {
  using A = Acc<T>;
  if (drop.rate == 0) {
    if (x != y) std::copy_n(x, rows * columns, y);
    return;
  }
  const int64_t width = drop.row_columns > 0 ? drop.row_columns : columns;
  const int64_t sample = drop.state->inputs.first_sample + drop.sample_offset;
  const int64_t first =
      (sample * drop.rows_per_sample + drop.row_offset) * width + drop.column_offset;
  const A factor = A(1) / (A(1) - static_cast<A>(drop.rate));
  for_pieces(pool, rows, row_grain(columns), [&](int64_t begin, int64_t end) {
    Uniform uniform(drop);
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        const bool kept = uniform(static_cast<uint64_t>(first + r * width + c)) >= drop.rate;
        const int64_t at = r * columns + c;
        y[at] = convert<A, T>(kept ? convert<T, A>(x[at]) * factor : A(0));
      }
  });
}

}  // namespace

void CpuKernels::dropout(TensorView x, const Dropout& drop, TensorView y, Stream& stream) {
  shapes::dropout(x, drop, y);
  launch(x.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    dropout_all(pool_, x.as<T>(), drop, y.as<T>(), x.rows(), x.columns());
  });
}

}  // namespace voltapile::cpu
