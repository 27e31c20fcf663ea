// Loops over rows in pieces whose borders depend on shapes alone, and sums over rows in a fixed
// order.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>

#include "voltapile/base/tensor_view.hpp"
#include "voltapile/base/thread_pool.hpp"

#include "scratch.hpp"

namespace voltapile::cpu {

template <class T>
T* optional(const TensorView& t) {
  return t ? t.as<T>() : nullptr;
}

inline int64_t pieces(int64_t count, int64_t grain) { return (count + grain - 1) / grain; }

// Rows of a piece: enough elements to be worth handing out, few enough to stay in a core's cache.
inline int64_t row_grain(int64_t columns, int64_t elements = 16384) {
  return std::max<int64_t>(1, elements / std::max<int64_t>(columns, 1));
}

template <class F>
void for_pieces(ThreadPool& pool, int64_t count, int64_t grain, F&& body) {
  pool.for_each_range(count, grain, std::ref(body));  // a reference: no allocation
}

// body(begin, end, sums) over pieces of rows; each piece has its own `width` sums, which start at
// zero. Then combine(column, sum) takes the totals of the pieces, added in their order.
template <class A, class F, class G>
void sum_over_rows(ThreadPool& pool, int64_t rows, int64_t grain, int64_t width, F&& body,
                   G&& combine) {
  const int64_t count = pieces(rows, grain);
  A* partial = scratch<A>(Scratch::call, count * width);
  for_pieces(pool, rows, grain, [&](int64_t begin, int64_t end) {
    A* sums = partial + begin / grain * width;
    std::fill_n(sums, width, A(0));
    body(begin, end, sums);
  });
  for_pieces(pool, width, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t piece = 1; piece < count; ++piece)
      for (int64_t c = begin; c < end; ++c) partial[c] += partial[piece * width + c];
    if (count > 0)
      for (int64_t c = begin; c < end; ++c) combine(c, partial[c]);
  });
}

}  // namespace voltapile::cpu
