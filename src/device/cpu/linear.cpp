#include "voltapile/device/shapes.hpp"

#include "gemm.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "vector_math.hpp"

namespace voltapile::cpu {
namespace {

// A tile of the result: tall enough for the product to run at speed, small enough that what follows
// it (bias, GELU) finds it in the core's cache.
constexpr int64_t kTileRows = 128;
constexpr int64_t kTileColumns = 384;

// Weights in the computing type: where they are, or widened once a call.
template <class T>
const Acc<T>* widened_weights(ThreadPool& pool, const T* w, int64_t n) {
  if constexpr (std::is_same_v<T, Acc<T>>) {
    return w;
  } else {
    Acc<T>* wide = scratch<Acc<T>>(Scratch::call, n);
    for_pieces(pool, n, 16384, [=](int64_t begin, int64_t end) {
      convert_run(w + begin, end - begin, wide + begin);
    });
    return wide;
  }
}

// A block of a matrix in the computing type: where it is, or widened into `room`.
template <class T>
Operand<Acc<T>> block_of(const T* from, int64_t stride, int64_t rows, int64_t columns,
                         Acc<T>* room) {
  if constexpr (std::is_same_v<T, Acc<T>>) {
    return {from, stride};
  } else {
    for (int64_t r = 0; r < rows; ++r) convert_run(from + r * stride, columns, room + r * columns);
    return {room, columns};
  }
}

// Calls epilogue(row, first column, columns, values, store) for runs of out (R,N) = a (R,K) b,
// where b is (K,N) or, transposed, (N,K); the epilogue finds the products in `values` and may
// change them.
template <class T, class F>
void product_with_epilogue(ThreadPool& pool, const T* a, const T* b, Layout b_layout, T* out,
                           int64_t rows, int64_t columns, int64_t inner, F&& epilogue) {
  using A = Acc<T>;
  constexpr bool kNarrow = !std::is_same_v<T, A>;
  const A* wide_b = widened_weights(pool, b, columns * inner);
  const int64_t b_stride = b_layout == Layout::transposed ? inner : columns;
  const int64_t down = pieces(rows, kTileRows), across = pieces(columns, kTileColumns);
  for_pieces(pool, down * across, 1, [&](int64_t tile, int64_t) {
    const int64_t row = tile / across * kTileRows, column = tile % across * kTileColumns;
    const int64_t m = std::min(kTileRows, rows - row), n = std::min(kTileColumns, columns - column);
    A* room = kNarrow ? scratch<A>(Scratch::piece, m * inner + m * n) : nullptr;
    const A* left = widened(a + row * inner, m * inner, room);
    T* store = out + row * columns + column;
    A* values = kNarrow ? room + m * inner : result_at(store, room);
    const int64_t stride = kNarrow ? n : columns;
    const A* right = wide_b + (b_layout == Layout::transposed ? column * inner : column);
    multiply(m, n, inner, {left, inner}, {right, b_stride, b_layout}, Into::assign, values, stride);
    for (int64_t r = 0; r < m; ++r)
      epilogue(row + r, column, n, values + r * stride, store + r * columns);
  });
}

template <class T>
void add_bias(const T* b, int64_t column, int64_t n, Acc<T>* values) {
  for (int64_t c = 0; c < n; ++c) values[c] += convert<T, Acc<T>>(b[column + c]);
}

template <class T>
void linear_all(ThreadPool& pool, const T* x, const T* w, const T* b, T* y, int64_t rows,
                int64_t columns, int64_t inner) {
  product_with_epilogue(pool, x, w, Layout::transposed, y, rows, columns, inner,
                        [=](int64_t, int64_t column, int64_t n, Acc<T>* values, T* store) {
                          if (b) add_bias(b, column, n, values);
                          round_to(values, n, store);
                        });
}

template <class T>
void linear_gelu_all(ThreadPool& pool, const T* x, const T* w, const T* b, T* pre, T* y,
                     int64_t rows, int64_t columns, int64_t inner) {
  product_with_epilogue(pool, x, w, Layout::transposed, pre, rows, columns, inner,
                        [=](int64_t row, int64_t column, int64_t n, Acc<T>* values, T* store) {
                          if (b) add_bias(b, column, n, values);
                          round_to(values, n, store);
                          // Of the rounded number, so that recomputing GELU from `pre` gives the
                          // same bits.
                          T* out = y + row * columns + column;
                          for (int64_t c = 0; c < n; ++c) {
                            if constexpr (std::is_same_v<T, Acc<T>>) out[c] = gelu_of(values[c]);
                            else values[c] = gelu_of(convert<T, Acc<T>>(store[c]));
                          }
                          round_to(values, n, out);
                        });
}

template <class T>
void linear_backward_input_all(ThreadPool& pool, const T* dy, const T* w, const T* pre, T* dx,
                               int64_t rows, int64_t columns, int64_t inner) {
  product_with_epilogue(pool, dy, w, Layout::plain, dx, rows, columns, inner,
                        [=](int64_t row, int64_t column, int64_t n, Acc<T>* values, T* store) {
                          if (pre) {
                            const T* at = pre + row * columns + column;
                            for (int64_t c = 0; c < n; ++c)
                              values[c] *= gelu_slope_of(convert<T, Acc<T>>(at[c]));
                          }
                          round_to(values, n, store);
                        });
}

// dw is divided into tiles over the threads; each adds up the rows in blocks, in order.
template <class T>
void linear_backward_weight_all(ThreadPool& pool, const T* dy, const T* x, Acc<T>* dw, Acc<T>* db,
                                int64_t rows, int64_t out, int64_t in) {
  using A = Acc<T>;
  constexpr bool kNarrow = !std::is_same_v<T, A>;
  constexpr int64_t kOut = 96, kIn = 384, kBlock = 256;
  const int64_t across = pieces(in, kIn);
  for_pieces(pool, pieces(out, kOut) * across, 1, [&](int64_t tile, int64_t) {
    const int64_t o = tile / across * kOut, i = tile % across * kIn;
    const int64_t m = std::min(kOut, out - o), n = std::min(kIn, in - i);
    A* room = kNarrow ? scratch<A>(Scratch::piece, kBlock * (m + n)) : nullptr;
    for (int64_t row = 0; row < rows; row += kBlock) {
      const int64_t k = std::min(kBlock, rows - row);
      const auto left = block_of(dy + row * out + o, out, k, m, room);
      const auto right = block_of(x + row * in + i, in, k, n, room + kBlock * m);
      multiply(m, n, k, {left.data, left.stride, Layout::transposed}, right, Into::accumulate,
               dw + o * in + i, in);
      if (db && i == 0)
        for (int64_t r = 0; r < k; ++r)
          for (int64_t c = 0; c < m; ++c) db[o + c] += left.data[r * left.stride + c];
    }
  });
}

}  // namespace

void CpuKernels::linear(TensorView x, TensorView w, TensorView b, TensorView y, Stream& stream) {
  shapes::linear("linear", x, w, b, y);
  launch(w.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    linear_all(pool_, x.as<T>(), w.as<T>(), optional<T>(b), y.as<T>(), x.rows(), w.shape[0],
               w.shape[1]);
  });
}

void CpuKernels::linear_gelu(TensorView x, TensorView w, TensorView b, TensorView pre, TensorView y,
                             Stream& stream) {
  shapes::linear("linear_gelu", x, w, b, y);
  shapes::expect("linear_gelu", "pre", pre, y.dtype, y.elements());
  launch(w.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    linear_gelu_all(pool_, x.as<T>(), w.as<T>(), optional<T>(b), pre.as<T>(), y.as<T>(), x.rows(),
                    w.shape[0], w.shape[1]);
  });
}

void CpuKernels::linear_backward_input(TensorView dy, TensorView w, TensorView dx, Stream& stream) {
  shapes::linear_backward_input("linear_backward_input", dy, w, dx);
  launch(w.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    linear_backward_input_all<T>(pool_, dy.as<T>(), w.as<T>(), nullptr, dx.as<T>(), dy.rows(),
                                 w.shape[1], w.shape[0]);
  });
}

void CpuKernels::linear_backward_input_gelu(TensorView dy, TensorView w, TensorView pre,
                                            TensorView dpre, Stream& stream) {
  shapes::linear_backward_input("linear_backward_input_gelu", dy, w, dpre);
  shapes::expect("linear_backward_input_gelu", "pre", pre, dpre.dtype, dpre.elements());
  launch(w.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    linear_backward_input_all<T>(pool_, dy.as<T>(), w.as<T>(), pre.as<T>(), dpre.as<T>(), dy.rows(),
                                 w.shape[1], w.shape[0]);
  });
}

void CpuKernels::linear_backward_weight(TensorView dy, TensorView x, TensorView dw, TensorView db,
                                        Stream& stream) {
  shapes::linear_backward_weight(dy, x, dw, db);
  launch(x.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    linear_backward_weight_all(pool_, dy.as<T>(), x.as<T>(), dw.as<Acc<T>>(), optional<Acc<T>>(db),
                               x.rows(), dy.columns(), x.columns());
  });
}

}  // namespace voltapile::cpu
