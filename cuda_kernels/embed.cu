// Pictures to patches, positions, pooling: one pass over memory each, bound by it.
#include <numeric>

#include "launch.cuh"

namespace voltapile::cuda {
namespace {

// --- patches: a block reads some lines of one channel, as wide as the picture, and writes their
// part of every patch in them.

constexpr int64_t kMostBlocks = 65535;  // in y

constexpr int kPatchThreads = 256;
constexpr int64_t kBandBytes = 16384;  // of pixels held by a block, if a line is not longer
constexpr int64_t kMostLineBytes = 49152;
constexpr int kLinePadding = 4;  // so that lines start in different banks

// Quotients of numbers below 2^16.
class Divide {
 public:
  explicit Divide(int64_t by)
      : factor_(by == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) + by - 1) / by)) {}
  __device__ __forceinline__ int operator()(int n) const {
    return factor_ == 0 ? n : static_cast<int>(__umulhi(static_cast<uint32_t>(n), factor_));
  }

 private:
  uint32_t factor_;
};

struct Lines {
  int channels, height, width;
  int patch_height, patch_width;
  int band;                                                          // lines held at a time
  int bands;                                                         // of them in a patch
  int stride() const { return (width + 3) / 4 * 4 + kLinePadding; }  // in shared memory, bytes
};

// (pixel/255 - mean) / std as pixel * scale + shift, each in two floats: within one rounding of
// what double arithmetic gives.
struct Normalise {
  float scale, scale_rest, shift, shift_rest;
  void set(double mean, double std) {
    const double a = 1.0 / (255.0 * std), b = -mean / std;
    scale = static_cast<float>(a);
    scale_rest = static_cast<float>(a - scale);
    shift = static_cast<float>(b);
    shift_rest = static_cast<float>(b - shift);
  }
  __device__ __forceinline__ float operator()(uint32_t pixel) const {
    const auto p = static_cast<float>(pixel);
    return fmaf(p, scale, shift) + fmaf(p, scale_rest, shift_rest);
  }
};
// Of the channels of one launch.
constexpr int kLaunchChannels = 16;
struct NormaliseChannels {
  Normalise of[kLaunchChannels];
};

// Grid: pictures, bands of the picture, channels from `first_channel`. N outputs are stored at
// once; V neighbouring pixels of them are read at once.
template <class T, int N, int V>
__global__ void __launch_bounds__(kPatchThreads)
    patchify_kernel(const uint8_t* pictures, const __grid_constant__ NormaliseChannels channels,
                    int first_channel, Lines p, int stride, Divide by_band, Divide by_part,
                    Divide by_last_part, Divide by_width, T* patches) {
  extern __shared__ __align__(16) uint8_t lines[];
  const int across = by_width(p.width), down = p.height / p.patch_height;
  const int64_t picture = blockIdx.x, channel = first_channel + blockIdx.z;
  const int i = by_band(blockIdx.y), band = blockIdx.y - i * p.bands;
  const int first_line = band * p.band;
  const bool last = band == p.bands - 1;
  const int count = min(p.band, p.patch_height - first_line);

  const uint8_t* source =
      pictures +
      ((picture * p.channels + channel) * p.height + i * p.patch_height + first_line) * p.width;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (p.width % 4 == 0 && reinterpret_cast<uintptr_t>(source) % 4 == 0) {
    for (int y = warp; y < count; y += kPatchThreads / 32)
#pragma unroll 2
      for (int x = 4 * lane; x < p.width; x += 4 * 32)
        *reinterpret_cast<uint32_t*>(lines + y * stride + x) =
            *reinterpret_cast<const uint32_t*>(source + y * p.width + x);
  } else {
    for (int y = warp; y < count; y += kPatchThreads / 32)
      for (int x = lane; x < p.width; x += 32) lines[y * stride + x] = source[y * p.width + x];
  }
  __syncthreads();
  const Normalise normalise = channels.of[blockIdx.z];

  const int part = count * p.patch_width;  // of a patch, in this band
  const int columns = p.channels * p.patch_height * p.patch_width;
  T* target = patches + (picture * down + i) * across * columns +
              (channel * p.patch_height + first_line) * p.patch_width;
  for (int at = threadIdx.x * N; at < across * part; at += kPatchThreads * N) {
    const int patch = last ? by_last_part(at) : by_part(at), inside = at - patch * part;
    int y = by_width(inside), x = inside - y * p.patch_width;
    Pack<T, N> out;
#pragma unroll
    for (int n = 0; n < N; n += V) {
      const auto read = *reinterpret_cast<const Pack<uint8_t, V>*>(lines + y * stride +
                                                                   patch * p.patch_width + x);
#pragma unroll
      for (int v = 0; v < V; ++v) out.v[n + v] = narrow<T>(normalise(read.v[v]));
      x += V;
      if (x == p.patch_width) x = 0, ++y;
    }
    store_pack(target + static_cast<uint32_t>(patch * columns + inside), out);
  }
}

template <class T, int N>
void patchify_all(const TensorView& pictures, std::span<const double> means,
                  std::span<const double> stds, const Lines& p, T* patches, cudaStream_t stream) {
  const Divide by_band(p.bands), by_part(int64_t{p.band} * p.patch_width),
      by_last_part((int64_t{p.patch_height} - (p.bands - 1) * p.band) * p.patch_width),
      by_width(p.patch_width);
  for (int first = 0; first < p.channels; first += kLaunchChannels) {
    const int count = std::min(kLaunchChannels, p.channels - first);
    NormaliseChannels channels;
    for (int c = 0; c < count; ++c)
      channels.of[c].set(means[static_cast<size_t>(first + c)],
                         stds[static_cast<size_t>(first + c)]);
    const dim3 grid(static_cast<unsigned>(pictures.shape[0]),
                    static_cast<unsigned>(p.height / p.patch_height * p.bands),
                    static_cast<unsigned>(count));
    const auto go = [&](auto run) {
      constexpr int V = decltype(run)::value;
      patchify_kernel<T, N, V><<<grid, kPatchThreads, p.band * p.stride(), stream>>>(
          as<const uint8_t>(pictures), channels, first, p, p.stride(), by_band, by_part,
          by_last_part, by_width, patches);
    };
    if (N % 4 == 0 && p.patch_width % 4 == 0) go(std::integral_constant<int, std::min(N, 4)>{});
    else if (N % 2 == 0 && p.patch_width % 2 == 0)
      go(std::integral_constant<int, std::min(N, 2)>{});
    else go(std::integral_constant<int, 1>{});
    VP_LAUNCHED();
  }
}

// --- sums over the batch or over tokens: a thread adds a few columns up, in order.

constexpr int kColumnThreads = 128;
constexpr int kAhead = 16;  // rows whose loads are in flight

// 8 bytes a thread: few columns must still fill the GPU.
template <class T>
inline constexpr int kNarrow = 8 / sizeof(T);

// body(k, Pack) for k in [0, count), in order, of packs `stride` elements apart.
template <class T, int N, class F>
__device__ __forceinline__ void for_rows(const T* from, int64_t count, int64_t stride, F&& body) {
  int64_t k = 0;
  for (; k + kAhead <= count; k += kAhead) {
    Pack<T, N> row[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) row[u] = load_pack<T, N>(from + (k + u) * stride);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) body(k + u, row[u]);
  }
  for (; k < count; ++k) body(k, load_pack<T, N>(from + k * stride));
}

template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    add_position_kernel(const T* tokens, const T* class_token, const T* position, T* out,
                        int64_t batch, int64_t sample, int64_t columns) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x) * N;
  if (at >= sample) return;
  // The class token takes the place of a sample's first row.
  const int64_t first = class_token != nullptr ? columns : 0;
  const auto here = load_pack<T, N>(position + at);
  const auto write = [&](int64_t b, const Pack<T, N>& from) {
    Pack<T, N> sum;
#pragma unroll
    for (int i = 0; i < N; ++i) sum.v[i] = narrow<T>(widen(from.v[i]) + widen(here.v[i]));
    store_pack(out + b * sample + at, sum);
  };
  const int64_t step = gridDim.y;
  if (at < first) {
    const auto token = load_pack<T, N>(class_token + at);
    for (int64_t b = blockIdx.y; b < batch; b += step) write(b, token);
    return;
  }
  for (int64_t b = blockIdx.y; b < batch; b += step)
    write(b, load_pack<T, N>(tokens + b * (sample - first) + at - first));
}

template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    add_position_backward_kernel(const T* dout, T* dtokens, float* dclass, float* dposition,
                                 int64_t batch, int64_t sample, int64_t first, int64_t columns) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x) * N;
  if (at >= sample) return;
  float sum[N] = {};
  const bool copies = dtokens != nullptr && at >= first;
  for_rows<T, N>(dout + at, batch, sample, [&](int64_t b, const Pack<T, N>& g) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += widen(g.v[i]);
    if (copies) store_pack(dtokens + b * (sample - first) + at - first, g);
  });
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (dposition != nullptr) dposition[at + i] += sum[i];
    if (dclass != nullptr && at < columns) dclass[at + i] += sum[i];
  }
}

// The mean of a sample's first `count` tokens.
template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    pool_kernel(const T* x, int64_t count, T* pooled, int64_t rows, int64_t columns) {
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kColumnThreads + threadIdx.x) * N;
  if (at >= columns) return;
  const int64_t b = blockIdx.x;
  float sum[N];
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = -0.0f;  // so that a single token keeps its sign
  for_rows<T, N>(x + b * rows * columns + at, count, columns, [&](int64_t, const Pack<T, N>& v) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += widen(v.v[i]);
  });
  Pack<T, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out.v[i] = narrow<T>(sum[i] / static_cast<float>(count));
  store_pack(pooled + b * columns + at, out);
}

// A thread writes one place of a few samples: neighbouring blocks, neighbouring memory.
template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    pool_backward_kernel(const T* dpooled, bool mean, float share, T* dx, int64_t batch,
                         int64_t sample, int columns) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x) * N;
  if (at >= sample) return;
  const int64_t column = static_cast<uint64_t>(at) % static_cast<uint32_t>(columns);
  for (int64_t b = blockIdx.y; b < batch; b += gridDim.y) {
    auto g = load_pack<T, N>(dpooled + b * columns + column);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (mean) g.v[i] = narrow<T>(widen(g.v[i]) * share);
      else if (at >= columns) g.v[i] = narrow<T>(0.0f);
    }
    store_pack(dx + b * sample + at, g);
  }
}

// Calls f with the pack size: kPack where columns and addresses allow it, else 1.
template <int kPack, class F, class... Addresses>
void with_pack(int64_t columns, F&& f, const Addresses*... addresses) {
  if (columns % kPack == 0 && (aligned<kPack>(addresses) && ...))
    f(std::integral_constant<int, kPack>{});
  else f(std::integral_constant<int, 1>{});
}

}  // namespace

void CudaKernels::patchify(TensorView pictures, std::span<const double> mean,
                           std::span<const double> std, int64_t patch_height, int64_t patch_width,
                           TensorView patches, Stream& stream) {
  shapes::patchify(pictures, mean.size(), std.size(), patch_height, patch_width, patches);
  const int64_t height = pictures.shape[2], width = pictures.shape[3];
  VP_CHECK(width <= kMostLineBytes - kLinePadding - 3 && height <= kMostBlocks,
           "patchify: pictures of {}x{}; the GPU takes up to {}x{}", height, width, kMostBlocks,
           kMostLineBytes - kLinePadding - 3);
  VP_CHECK(pictures.shape[1] * height * width < int64_t{1} << 31, "patchify: pictures of {}",
           pictures.shape.text());
  if (pictures.elements() == 0) return;
  Lines p = {static_cast<int>(pictures.shape[1]), static_cast<int>(height), static_cast<int>(width),
             static_cast<int>(patch_height), static_cast<int>(patch_width)};
  p.band = static_cast<int>(std::clamp<int64_t>(kBandBytes / p.stride(), 1, patch_height));
  p.bands = (p.patch_height + p.band - 1) / p.band;
  // What every part of a patch starts at and holds is a multiple of this.
  const int64_t unit = std::gcd(patch_height * patch_width, p.band * patch_width);
  visit(patches.dtype, [&](auto tag) {
    using T = decltype(tag);
    T* out = as<T>(patches);
    const auto fits = [&](int n) {
      return unit % n == 0 && reinterpret_cast<uintptr_t>(out) % (n * sizeof(T)) == 0;
    };
    const cudaStream_t s = handle_of(stream);
    if (fits(kWide<T>)) patchify_all<T, kWide<T>>(pictures, mean, std, p, out, s);
    else if (fits(kWide<T> / 2)) patchify_all<T, kWide<T> / 2>(pictures, mean, std, p, out, s);
    else patchify_all<T, 1>(pictures, mean, std, p, out, s);
  });
}

void CudaKernels::add_position(TensorView tokens, TensorView class_token, TensorView position,
                               TensorView out, Stream& stream) {
  shapes::add_position(tokens, class_token, position, out);
  const int64_t batch = tokens.shape[0], columns = tokens.shape[2];
  const int64_t sample = (tokens.shape[1] + (class_token ? 1 : 0)) * columns;
  if (batch * sample == 0) return;
  visit(tokens.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *from = as<T>(tokens), *token = as<T>(class_token), *place = as<T>(position);
    T* to = as<T>(out);
    with_pack<kWide<T>>(
        columns,
        [&](auto pack) {
          constexpr int N = decltype(pack)::value;
          const dim3 grid(blocks_for(sample, kColumnThreads * N),
                          blocks_for(batch, 4, kMostBlocks));
          add_position_kernel<T, N><<<grid, kColumnThreads, 0, handle_of(stream)>>>(
              from, token, place, to, batch, sample, columns);
        },
        from, token, place, to);
    VP_LAUNCHED();
  });
}

void CudaKernels::add_position_backward(TensorView dout, TensorView dtokens, TensorView dclass,
                                        TensorView dposition, Stream& stream) {
  shapes::add_position_backward(dout, dtokens, dclass, dposition);
  const int64_t batch = dout.shape[0], rows = dout.shape[1], columns = dout.shape[2];
  if (rows * columns == 0) return;
  const int64_t first = dtokens ? (rows - dtokens.shape[1]) * columns : 0;
  visit(dout.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* from = as<T>(dout);
    T* to = as<T>(dtokens);
    with_pack<kNarrow<T>>(
        columns,
        [&](auto pack) {
          constexpr int N = decltype(pack)::value;
          add_position_backward_kernel<T, N>
              <<<blocks_for(rows * columns, kColumnThreads * N), kColumnThreads, 0,
                 handle_of(stream)>>>(from, to, as<float>(dclass), as<float>(dposition), batch,
                                      rows * columns, first, columns);
        },
        from, to);
    VP_LAUNCHED();
  });
}

void CudaKernels::pool(TensorView x, bool mean, TensorView pooled, Stream& stream) {
  shapes::pool("pool", x, pooled);
  const int64_t batch = x.shape[0], rows = x.shape[1], columns = x.shape[2];
  if (x.elements() == 0) return;
  visit(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* from = as<T>(x);
    T* to = as<T>(pooled);
    with_pack<kNarrow<T>>(
        columns,
        [&](auto pack) {
          constexpr int N = decltype(pack)::value;
          const dim3 grid(static_cast<unsigned>(batch), blocks_for(columns, kColumnThreads * N));
          pool_kernel<T, N><<<grid, kColumnThreads, 0, handle_of(stream)>>>(from, mean ? rows : 1,
                                                                            to, rows, columns);
        },
        from, to);
    VP_LAUNCHED();
  });
}

void CudaKernels::pool_backward(TensorView dpooled, bool mean, TensorView dx, Stream& stream) {
  shapes::pool("pool_backward", dx, dpooled);
  const int64_t batch = dx.shape[0], rows = dx.shape[1], columns = dx.shape[2];
  if (dx.elements() == 0) return;
  visit(dx.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* from = as<T>(dpooled);
    T* to = as<T>(dx);
    with_pack<kWide<T>>(
        columns,
        [&](auto pack) {
          constexpr int N = decltype(pack)::value;
          const int64_t sample = rows * columns;
          const dim3 grid(blocks_for(sample, kColumnThreads * N),
                          blocks_for(batch, 4, kMostBlocks));
          pool_backward_kernel<T, N><<<grid, kColumnThreads, 0, handle_of(stream)>>>(
              from, mean, 1.0f / static_cast<float>(rows), to, batch, sample,
              static_cast<int>(columns));
        },
        from, to);
    VP_LAUNCHED();
  });
}

}  // namespace voltapile::cuda
