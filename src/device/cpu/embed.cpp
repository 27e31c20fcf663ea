#include "voltapile/device/shapes.hpp"

#include "kernels.hpp"
#include "parallel.hpp"

namespace voltapile::cpu {
namespace {

template <class T>
void patchify_picture(const uint8_t* picture, std::span<const double> mean,
                      std::span<const double> std, int64_t height, int64_t width,
                      int64_t patch_height, int64_t patch_width, T* patches) {
  using A = Acc<T>;
  const auto channels = static_cast<int64_t>(mean.size());
  const int64_t across = width / patch_width;
  const int64_t columns = channels * patch_height * patch_width;
  for (int64_t c = 0; c < channels; ++c) {
    T of_pixel[256];
    for (int value = 0; value < 256; ++value)
      of_pixel[value] = convert<A, T>(static_cast<A>(
          (value / 255.0 - mean[static_cast<size_t>(c)]) / std[static_cast<size_t>(c)]));
    for (int64_t y = 0; y < height; ++y) {
      const uint8_t* line = picture + (c * height + y) * width;
      T* row = patches + y / patch_height * across * columns +
               (c * patch_height + y % patch_height) * patch_width;
      for (int64_t p = 0; p < across; ++p)
        for (int64_t x = 0; x < patch_width; ++x)
          row[p * columns + x] = of_pixel[line[p * patch_width + x]];
    }
  }
}

template <class T>
void add_position_all(ThreadPool& pool, const T* tokens, const T* class_token, const T* position,
                      T* out, int64_t batch, int64_t rows, int64_t columns) {
  using A = Acc<T>;
  const int64_t first = class_token ? 1 : 0;
  for_pieces(pool, batch * rows, row_grain(columns), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t b = r / rows, t = r % rows;
      const T* from = t < first ? class_token : tokens + (b * (rows - first) + t - first) * columns;
      for (int64_t c = 0; c < columns; ++c)
        out[r * columns + c] =
            convert<A, T>(convert<T, A>(from[c]) + convert<T, A>(position[t * columns + c]));
    }
  });
}

// By token, so that the sums over the batch have one order.
template <class T>
void add_position_backward_all(ThreadPool& pool, const T* dout, T* dtokens, Acc<T>* dclass,
                               Acc<T>* dposition, int64_t batch, int64_t rows, int64_t first,
                               int64_t columns) {
  using A = Acc<T>;
  for_pieces(pool, rows, row_grain(columns * batch), [=](int64_t begin, int64_t end) {
    A* sum = scratch<A>(Scratch::piece, columns);
    for (int64_t t = begin; t < end; ++t) {
      std::fill_n(sum, columns, A(0));
      for (int64_t b = 0; b < batch; ++b) {
        const T* from = dout + (b * rows + t) * columns;
        for (int64_t c = 0; c < columns; ++c) sum[c] += convert<T, A>(from[c]);
        if (dtokens && t >= first)
          std::copy_n(from, columns, dtokens + (b * (rows - first) + t - first) * columns);
      }
      if (dposition)
        for (int64_t c = 0; c < columns; ++c) dposition[t * columns + c] += sum[c];
      if (dclass && t == 0)
        for (int64_t c = 0; c < columns; ++c) dclass[c] += sum[c];
    }
  });
}

template <class T>
void pool_all(ThreadPool& threads, const T* x, bool mean, T* pooled, int64_t batch, int64_t rows,
              int64_t columns) {
  using A = Acc<T>;
  for_pieces(threads, batch, 1, [=](int64_t b, int64_t) {
    const T* from = x + b * rows * columns;
    if (!mean) {
      std::copy_n(from, columns, pooled + b * columns);
      return;
    }
    A* sum = scratch<A>(Scratch::piece, columns);
    std::fill_n(sum, columns, A(0));
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t c = 0; c < columns; ++c) sum[c] += convert<T, A>(from[t * columns + c]);
    for (int64_t c = 0; c < columns; ++c)
      pooled[b * columns + c] = convert<A, T>(sum[c] / static_cast<A>(rows));
  });
}

template <class T>
void pool_backward_all(ThreadPool& threads, const T* dpooled, bool mean, T* dx, int64_t batch,
                       int64_t rows, int64_t columns) {
  using A = Acc<T>;
  for_pieces(threads, batch, 1, [=](int64_t b, int64_t) {
    T* to = dx + b * rows * columns;
    const T* from = dpooled + b * columns;
    for (int64_t c = 0; c < columns; ++c)
      to[c] = mean ? convert<A, T>(convert<T, A>(from[c]) / static_cast<A>(rows)) : from[c];
    for (int64_t t = 1; t < rows; ++t) {
      if (mean) std::copy_n(to, columns, to + t * columns);
      else std::fill_n(to + t * columns, columns, convert<A, T>(0));
    }
  });
}

}  // namespace

void CpuKernels::patchify(TensorView pictures, std::span<const double> mean,
                          std::span<const double> std, int64_t patch_height, int64_t patch_width,
                          TensorView patches, Stream& stream) {
  shapes::patchify(pictures, mean.size(), std.size(), patch_height, patch_width, patches);
  launch(patches.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    const int64_t elements = pictures.elements() / std::max<int64_t>(pictures.shape[0], 1);
    for_pieces(pool_, pictures.shape[0], 1, [&](int64_t b, int64_t) {
      patchify_picture(pictures.as<uint8_t>() + b * elements, mean, std, pictures.shape[2],
                       pictures.shape[3], patch_height, patch_width,
                       patches.as<T>() + b * elements);
    });
  });
}

void CpuKernels::add_position(TensorView tokens, TensorView class_token, TensorView position,
                              TensorView out, Stream& stream) {
  shapes::add_position(tokens, class_token, position, out);
  launch(tokens.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    add_position_all(pool_, tokens.as<T>(), optional<T>(class_token), position.as<T>(), out.as<T>(),
                     tokens.shape[0], tokens.shape[1] + (class_token ? 1 : 0), tokens.shape[2]);
  });
}

void CpuKernels::add_position_backward(TensorView dout, TensorView dtokens, TensorView dclass,
                                       TensorView dposition, Stream& stream) {
  shapes::add_position_backward(dout, dtokens, dclass, dposition);
  launch(dout.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    const int64_t first = dtokens ? dout.shape[1] - dtokens.shape[1] : 0;
    add_position_backward_all(pool_, dout.as<T>(), optional<T>(dtokens), optional<Acc<T>>(dclass),
                              optional<Acc<T>>(dposition), dout.shape[0], dout.shape[1], first,
                              dout.shape[2]);
  });
}

void CpuKernels::pool(TensorView x, bool mean, TensorView pooled, Stream& stream) {
  shapes::pool("pool", x, pooled);
  launch(x.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    pool_all(pool_, x.as<T>(), mean, pooled.as<T>(), x.shape[0], x.shape[1], x.shape[2]);
  });
}

void CpuKernels::pool_backward(TensorView dpooled, bool mean, TensorView dx, Stream& stream) {
  shapes::pool("pool_backward", dx, dpooled);
  launch(dx.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    pool_backward_all(pool_, dpooled.as<T>(), mean, dx.as<T>(), dx.shape[0], dx.shape[1],
                      dx.shape[2]);
  });
}

}  // namespace voltapile::cpu
