#include "column_sums.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostDim = 256;

// qkv as (R, 3, H, D). A unit is one head of one token: its q, k and v are taken together.
struct Heads {
  int64_t units;
  int64_t heads;
  int dim;
  int lanes;  // that hold a row of D: a power of 2

  __device__ __forceinline__ int64_t token(int64_t unit) const { return divided(unit, heads); }
  // Of q; k is `between()` further, v twice that.
  __device__ __forceinline__ int64_t offset(int64_t unit) const {
    return (unit + 2 * heads * token(unit)) * dim;
  }
  __device__ __forceinline__ int64_t between() const { return heads * dim; }
  // Of (mean, rstd) in stats (R, 2, H, 2).
  __device__ __forceinline__ int64_t statistics(int64_t unit, int part) const {
    return 2 * (unit + heads * (token(unit) + part));
  }
};

__device__ __forceinline__ float lanes_sum(float v, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

template <class T>
struct Forward {
  const T* qkv;
  std::array<const T*, 2> gamma, beta;
  float eps;
  T* out;
  float* stats;
};
template <class T>
struct Backward {
  const T *dout, *qkv;
  std::array<const T*, 2> gamma;
  const float* stats;
  T* dqkv;
  float* partial;  // (blocks, 4, D); null: not wanted
};

// Every lane of a warp takes part in the sums: units beyond the last are read as the last and not
// written. Reads qkv once and writes out once; bound: memory.
template <class T, int kWidth, int kPacks>
__global__ void __launch_bounds__(kThreads) qk_norm_kernel(const Forward<T> a, const Heads shape) {
  const int lane = static_cast<int>(threadIdx.x) % shape.lanes;
  const int64_t unit = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / shape.lanes;
  const bool ours = unit < shape.units;
  const int64_t token_unit = ours ? unit : shape.units - 1;
  const int64_t offset = shape.offset(token_unit);
  const auto column_of = [&](int j) { return (lane + j * shape.lanes) * kWidth; };

  Pack<T, kWidth> in[3][kPacks];
#pragma unroll
  for (int part = 0; part < 3; ++part)
#pragma unroll
    for (int j = 0; j < kPacks; ++j)
      if (column_of(j) < shape.dim)
        in[part][j] = load_once<T, kWidth>(a.qkv + offset + part * shape.between() + column_of(j));
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    float v[kPacks][kWidth], sum = 0, squares = 0;
#pragma unroll
    for (int j = 0; j < kPacks; ++j)
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        v[j][k] = column_of(j) < shape.dim ? widen(in[part][j].v[k]) : 0.0f;
        sum += v[j][k];
      }
    const float mean = lanes_sum(sum, shape.lanes) / static_cast<float>(shape.dim);
#pragma unroll
    for (int j = 0; j < kPacks; ++j)
      if (column_of(j) < shape.dim) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) squares = fmaf(v[j][k] - mean, v[j][k] - mean, squares);
      }
    const float rstd = rstd_of(lanes_sum(squares, shape.lanes), shape.dim, a.eps);
#pragma unroll
    for (int j = 0; j < kPacks; ++j)
      if (column_of(j) < shape.dim)
        in[part][j] =
            normalised_pack<T>(v[j], mean, rstd, a.gamma[part], a.beta[part], column_of(j));
    if (ours && lane == 0) {
      a.stats[shape.statistics(unit, part)] = mean;
      a.stats[shape.statistics(unit, part) + 1] = rstd;
    }
  }
  if (!ours) return;
#pragma unroll
  for (int part = 0; part < 3; ++part)
#pragma unroll
    for (int j = 0; j < kPacks; ++j)
      if (column_of(j) < shape.dim)
        store(a.out + offset + part * shape.between() + column_of(j), in[part][j]);
}

// Reads dout and q, k of qkv once, writes dqkv once; bound: memory. A block takes every gridDim-th
// batch of units, so that its sums over tokens and heads stay in registers.
template <class T, int kWidth, int kPacks>
__global__ void __launch_bounds__(kThreads, 3)
    qk_norm_backward_kernel(const Backward<T> a, const Heads shape) {
  using Numbers = Pack<T, kWidth>;
  __shared__ float shared[kThreads / 32][4][kMostDim];
  const int lane = static_cast<int>(threadIdx.x) % shape.lanes;
  const auto column_of = [&](int j) { return (lane + j * shape.lanes) * kWidth; };
  Numbers gamma[2][kPacks];
  float sums[4][kPacks][kWidth] = {};  // dgamma, dbeta of q; of k
#pragma unroll
  for (int part = 0; part < 2; ++part)
#pragma unroll
    for (int j = 0; j < kPacks; ++j)
      if (column_of(j) < shape.dim) gamma[part][j] = load<T, kWidth>(a.gamma[part] + column_of(j));

  const int64_t step = int64_t{gridDim.x} * (kThreads / shape.lanes);
  const int64_t own = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / shape.lanes;
  for (int64_t first = int64_t{blockIdx.x} * (kThreads / shape.lanes); first < shape.units;
       first += step) {
    const int64_t unit = own + (first - int64_t{blockIdx.x} * (kThreads / shape.lanes));
    const bool ours = unit < shape.units;
    const int64_t offset = shape.offset(ours ? unit : shape.units - 1);
    Numbers dy[3][kPacks], x[2][kPacks];
#pragma unroll
    for (int j = 0; j < kPacks; ++j) keep_packed(gamma[0][j]), keep_packed(gamma[1][j]);
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      if (column_of(j) >= shape.dim) continue;
#pragma unroll
      for (int part = 0; part < 3; ++part)
        dy[part][j] = load_once<T, kWidth>(a.dout + offset + part * shape.between() + column_of(j));
#pragma unroll
      for (int part = 0; part < 2; ++part)
        x[part][j] = load_once<T, kWidth>(a.qkv + offset + part * shape.between() + column_of(j));
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const float* statistics = a.stats + shape.statistics(ours ? unit : shape.units - 1, part);
      const float mean = statistics[0], rstd = statistics[1];
      float sum = 0, dot = 0;
#pragma unroll
      for (int j = 0; j < kPacks; ++j) {
        if (column_of(j) >= shape.dim) continue;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const float slope = ours ? widen(dy[part][j].v[k]) : 0.0f;
          const float normal = (widen(x[part][j].v[k]) - mean) * rstd;
          const float g = slope * widen(gamma[part][j].v[k]);
          sums[2 * part][j][k] = fmaf(slope, normal, sums[2 * part][j][k]);
          sums[2 * part + 1][j][k] += slope;
          sum += g;
          dot = fmaf(g, normal, dot);
        }
      }
      const float mean_g = lanes_sum(sum, shape.lanes) / static_cast<float>(shape.dim);
      const float mean_dot = lanes_sum(dot, shape.lanes) / static_cast<float>(shape.dim);
#pragma unroll
      for (int j = 0; j < kPacks; ++j) {
        if (column_of(j) >= shape.dim) continue;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const float normal = (widen(x[part][j].v[k]) - mean) * rstd;
          const float g = widen(dy[part][j].v[k]) * widen(gamma[part][j].v[k]);
          dy[part][j].v[k] = narrow<T>(rstd * (g - mean_g - normal * mean_dot));
        }
      }
    }
    if (!ours) continue;
#pragma unroll
    for (int part = 0; part < 3; ++part)
#pragma unroll
      for (int j = 0; j < kPacks; ++j)
        if (column_of(j) < shape.dim)
          store(a.dqkv + offset + part * shape.between() + column_of(j), dy[part][j]);
  }

  if (a.partial == nullptr) return;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int s = 0; s < 4; ++s)
#pragma unroll
    for (int j = 0; j < kPacks; ++j)
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        float total = sums[s][j][k];
        for (int away = shape.lanes; away < 32; away *= 2)
          total += __shfl_xor_sync(0xffffffffu, total, away);
        if (static_cast<int>(threadIdx.x) % 32 < shape.lanes && column_of(j) < shape.dim)
          shared[warp][s][column_of(j) + k] = total;
      }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 4 * shape.dim; i += kThreads) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) total += shared[w][i / shape.dim][i % shape.dim];
    a.partial[int64_t{blockIdx.x} * 4 * shape.dim + i] = total;
  }
}

// Calls f with the pack width and packs a lane as constants, and the shape.
template <class T, class F>
void visit_heads(const TensorView& qkv, std::initializer_list<const void*> operands, F&& f) {
  const int64_t dim = qkv.shape[4];
  VP_CHECK(dim <= kMostDim, "the cuda device normalises heads of up to {} numbers, not {}",
           kMostDim, dim);
  Heads shape{qkv.shape[0] * qkv.shape[1] * qkv.shape[3], qkv.shape[3], static_cast<int>(dim), 1};
  if (shape.units == 0 || dim == 0) return;
  const auto with = [&](auto width, auto packs) {
    while (shape.lanes * width() * packs() < dim) shape.lanes *= 2;
    f(width, packs, shape);
  };
  if (wide_rows<T>(dim, operands) && dim <= 32 * kWide<T>)
    with(std::integral_constant<int, kWide<T>>{}, std::integral_constant<int, 1>{});
  else with(std::integral_constant<int, 1>{}, std::integral_constant<int, 8>{});
}

}  // namespace

void CudaKernels::qk_norm(TensorView qkv, TensorView gamma_q, TensorView beta_q, TensorView gamma_k,
                          TensorView beta_k, double eps, TensorView out, TensorView stats,
                          Stream& stream) {
  shapes::qk_norm("qk_norm", qkv, gamma_q, gamma_k, out, stats);
  visit(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Forward<T> a{as<T>(qkv),
                       {as<T>(gamma_q), as<T>(gamma_k)},
                       {as<T>(beta_q), as<T>(beta_k)},
                       static_cast<float>(eps),
                       as<T>(out),
                       as<float>(stats)};
    visit_heads<T>(
        qkv, {a.qkv, a.out, a.gamma[0], a.gamma[1], a.beta[0], a.beta[1]},
        [&](auto width, auto packs, const Heads& shape) {
          qk_norm_kernel<T, width(), packs()>
              <<<blocks_for(shape.units, kThreads / shape.lanes), kThreads, 0, handle_of(stream)>>>(
                  a, shape);
          VP_LAUNCHED();
        });
  });
}

void CudaKernels::qk_norm_backward(TensorView dout, TensorView qkv, TensorView gamma_q,
                                   TensorView gamma_k, TensorView stats, TensorView dqkv,
                                   TensorView dgamma_q, TensorView dbeta_q, TensorView dgamma_k,
                                   TensorView dbeta_k, Stream& stream) {
  shapes::qk_norm("qk_norm_backward", qkv, gamma_q, gamma_k, dqkv, stats);
  shapes::expect("qk_norm_backward", "dout", dout, qkv.dtype, qkv.elements());
  shapes::qk_norm_sums(qkv, dgamma_q, dbeta_q, dgamma_k, dbeta_k);
  const SumTargets targets{
      {as<float>(dgamma_q), as<float>(dbeta_q), as<float>(dgamma_k), as<float>(dbeta_k)}, 4};
  visit(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Backward<T> a{as<T>(dout),
                        as<T>(qkv),
                        {as<T>(gamma_q), as<T>(gamma_k)},
                        as<float>(stats),
                        as<T>(dqkv),
                        dgamma_q ? reinterpret_cast<float*>(context_.scratch(stream)) : nullptr};
    visit_heads<T>(qkv, {a.dout, a.qkv, a.dqkv, a.gamma[0], a.gamma[1]},
                   [&](auto width, auto packs, const Heads& shape) {
                     const unsigned blocks = blocks_for(shape.units, kThreads / shape.lanes,
                                                        3 * context_.gpu().multiprocessors);
                     qk_norm_backward_kernel<T, width(), packs()>
                         <<<blocks, kThreads, 0, handle_of(stream)>>>(a, shape);
                     VP_LAUNCHED();
                     if (a.partial)
                       add_partials(a.partial, blocks, shape.dim, targets, handle_of(stream));
                   });
  });
}

}  // namespace voltapile::cuda
