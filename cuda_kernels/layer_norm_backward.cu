#include "column_sums.cuh"

namespace voltapile::cuda {
namespace {

constexpr int kThreads = 512;

template <class T>
struct Backward {
  const T *dy, *x, *gamma, *residual;  // residual: may be null
  const float *mean, *rstd;
  T* dx;
  float* partial;  // (blocks, 2, columns): dgamma, dbeta; null: not wanted
  int64_t rows;
  int columns;
};
// A group of warps holds a row; each thread's packs wait in `stages` (1 or 2) places of shared
// memory.
struct Groups {
  int threads = 32, count = 1, stages = 1;
};

// From global to shared memory, where the GPU can without waiting; zeros where nothing is `there`.
template <class T, int N>
__device__ __forceinline__ void copy_ahead(Pack<T, N>& to, const T* from, bool there) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(to) == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(&to))),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
    return;
  }
#endif
  to = there ? load<T, N>(from) : Pack<T, N>{};
}
__device__ __forceinline__ void end_of_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until all but the last kAhead batches of this thread's copies are there.
template <int kAhead>
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kAhead) : "memory");
#endif
}

// One pass: reads dy, x (and the residual), writes dx. Blocks stay for many rows, which the groups
// of a block take in turn. Rows come through shared memory, copied there asynchronously while the
// row before is worked on; every thread copies what it will read itself, so that only the two sums
// over a row need a barrier. All groups of a block go on equally long: a row past the end is zeros.
// The sums over rows stay in registers until the end. Bound: memory.
template <class T, int kWidth, int kPacks, bool kResidual>
__global__ void __launch_bounds__(kThreads, 1)
    layer_norm_backward_kernel(const Backward<T> a, const Groups groups) {
  using Numbers = Pack<T, kWidth>;
  constexpr int kOperands = kResidual ? 3 : 2;
  extern __shared__ __align__(16) unsigned char room[];
  __shared__ float2 shared[2][kThreads / 32];
  const int group = static_cast<int>(threadIdx.x) / groups.threads;
  const int thread = static_cast<int>(threadIdx.x) % groups.threads;
  const int first = thread / 32 * 32 * kPacks + thread % 32;  // of the thread's packs
  Numbers* const slots = reinterpret_cast<Numbers*>(room);
  const int in_operand = kPacks * groups.threads;
  const int own = group * groups.stages * kOperands * in_operand + first;
  const auto column_of = [&](int j) { return (first + j * 32) * kWidth; };
  const auto there = [&](int j) { return column_of(j) < a.columns; };
  const auto fetch = [&](int row, int stage) {
    const int64_t at = int64_t{row} * a.columns + first * kWidth;
    const int slot = own + stage * kOperands * in_operand;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const bool real = row < a.rows && there(j);
      const int64_t from = at + j * 32 * kWidth;
      copy_ahead(slots[slot + j * 32], a.dy + from, real);
      copy_ahead(slots[slot + in_operand + j * 32], a.x + from, real);
      if constexpr (kResidual)
        copy_ahead(slots[slot + 2 * in_operand + j * 32], a.residual + from, real);
    }
    end_of_copies();
  };

  Numbers gamma[kPacks] = {};
  float dgamma[kPacks][kWidth] = {}, dbeta[kPacks][kWidth] = {};
#pragma unroll
  for (int j = 0; j < kPacks; ++j)
    if (there(j)) gamma[j] = load<T, kWidth>(a.gamma + column_of(j));
  // Where the sums fill the registers, packs must not be read ahead of their use, and gamma must
  // not be widened ahead of all rows.
  const auto one_pack_at_a_time = [&](int j) {
    if constexpr (kPacks * kWidth > 16) {
      keep_packed(gamma[j]);
      asm volatile("" ::: "memory");
    }
  };

  const int step = static_cast<int>(gridDim.x) * groups.count, ahead = groups.stages - 1;
  int in_block = static_cast<int>(blockIdx.x) * groups.count;  // the first group's row
  int row = in_block + group;
  int stage = 0, turn = 0;
  float next_mean = 0, next_rstd = 0;
  if (row < a.rows) next_mean = a.mean[row], next_rstd = a.rstd[row];
  if (ahead) fetch(row, 0);
  for (; in_block < a.rows; in_block += step, row += step) {
    const float mean = next_mean, rstd = next_rstd, shift = -mean * rstd;
    // An error of the product mean * rstd is far below the rounding of 16-bit x.
    const auto normal_of = [&](float x) {
      return sizeof(T) == 2 ? fmaf(x, rstd, shift) : (x - mean) * rstd;
    };
    if (row + step < a.rows) next_mean = a.mean[row + step], next_rstd = a.rstd[row + step];
    fetch(row + ahead * step, stage ^ ahead);
    if (ahead) wait_for_copies<1>();
    else wait_for_copies<0>();

    const int slot = own + stage * kOperands * in_operand;
    float sum = 0, dot = 0;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      one_pack_at_a_time(j);
      const Numbers dy = slots[slot + j * 32], x = slots[slot + in_operand + j * 32];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float slope = widen(dy.v[k]), normal = normal_of(widen(x.v[k]));
        const float g = slope * widen(gamma[j].v[k]);
        dgamma[j][k] = fmaf(slope, normal, dgamma[j][k]);
        dbeta[j][k] += slope;
        sum += g;
        dot = fmaf(g, normal, dot);
      }
    }
    sum = warp_sum(sum);
    dot = warp_sum(dot);
    if (groups.threads > 32) {
      const int warps = groups.threads / 32;
      float2* const sums = shared[turn] + group * warps;
      if (thread % 32 == 0) sums[thread / 32] = {sum, dot};
      __syncthreads();
      sum = dot = 0;
      for (int w = 0; w < warps; ++w) {
        sum += sums[w].x;
        dot += sums[w].y;
      }
      turn ^= 1;
    }
    const float mean_g = sum / static_cast<float>(a.columns);
    const float mean_dot = dot / static_cast<float>(a.columns);
    T* const dx = a.dx + (int64_t{row} * a.columns + first * kWidth);
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      one_pack_at_a_time(j);
      const Numbers dy = slots[slot + j * 32], x = slots[slot + in_operand + j * 32];
      Numbers added{}, out;
      if constexpr (kResidual) added = slots[slot + 2 * in_operand + j * 32];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float off_mean = fmaf(widen(dy.v[k]), widen(gamma[j].v[k]), -mean_g);
        const float slope = fmaf(-mean_dot, normal_of(widen(x.v[k])), off_mean);
        out.v[k] = narrow<T>(kResidual ? fmaf(rstd, slope, widen(added.v[k])) : rstd * slope);
      }
      if (row < a.rows && there(j)) store(dx + j * 32 * kWidth, out);
    }
    stage ^= ahead;
  }

  if (a.partial == nullptr) return;
  float* const partial = a.partial + int64_t{blockIdx.x} * 2 * a.columns;
  wait_for_copies<0>();
  __syncthreads();
  float* to = groups.count == 1 ? partial : reinterpret_cast<float*>(room) + group * 2 * a.columns;
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    if (!there(j)) continue;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      to[column_of(j) + k] = dgamma[j][k];
      to[a.columns + column_of(j) + k] = dbeta[j][k];
    }
  }
  if (groups.count == 1) return;
  __syncthreads();
  const float* from = reinterpret_cast<const float*>(room);
  for (int c = static_cast<int>(threadIdx.x); c < 2 * a.columns;
       c += static_cast<int>(blockDim.x)) {
    float total = 0;
    for (int g = 0; g < groups.count; ++g) total += from[g * 2 * a.columns + c];
    partial[c] = total;
  }
}

// Rows that do not fit in the registers of a block: the sums over rows first (dx may take the place
// of dy), then dx, which reads dy and x again.
template <class T>
struct NormTerms {
  static constexpr int kSums = 2, kUnroll = 2;
  using Row = float2;  // mean, rstd
  template <int N>
  struct In {
    Pack<T, N> dy, x;
  };
  Backward<T> a;

  __device__ Row row(int64_t r) const { return {a.mean[r], a.rstd[r]}; }
  template <int N>
  __device__ __forceinline__ In<N> read(int64_t r, int64_t column) const {
    return {load<T, N>(a.dy + r * a.columns + column), load<T, N>(a.x + r * a.columns + column)};
  }
  template <int N>
  __device__ __forceinline__ void use(const In<N>& in, Row s, int64_t, int64_t,
                                      float (&sums)[kSums][N]) const {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sums[0][k] = fmaf(widen(in.dy.v[k]), (widen(in.x.v[k]) - s.x) * s.y, sums[0][k]);
      sums[1][k] += widen(in.dy.v[k]);
    }
  }
};
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) long_row_gradient_kernel(const Backward<T> a) {
  __shared__ float shared[2][32];
  const int64_t begin = int64_t{blockIdx.x} * a.columns;
  const float mean = a.mean[blockIdx.x], rstd = a.rstd[blockIdx.x];
  float sum = 0, dot = 0;
  for (int c = static_cast<int>(threadIdx.x) * kWidth; c < a.columns; c += kThreads * kWidth) {
    const auto dy = load<T, kWidth>(a.dy + begin + c), x = load<T, kWidth>(a.x + begin + c),
               gamma = load<T, kWidth>(a.gamma + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float g = widen(dy.v[k]) * widen(gamma.v[k]);
      sum += g;
      dot = fmaf(g, (widen(x.v[k]) - mean) * rstd, dot);
    }
  }
  const float mean_g = block_sum(sum, shared[0]) / static_cast<float>(a.columns);
  const float mean_dot = block_sum(dot, shared[1]) / static_cast<float>(a.columns);
  for (int c = static_cast<int>(threadIdx.x) * kWidth; c < a.columns; c += kThreads * kWidth) {
    const auto dy = load<T, kWidth>(a.dy + begin + c), x = load<T, kWidth>(a.x + begin + c),
               gamma = load<T, kWidth>(a.gamma + c);
    Pack<T, kWidth> added{}, dx;
    if (a.residual) added = load<T, kWidth>(a.residual + begin + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float normal = (widen(x.v[k]) - mean) * rstd;
      const float g = widen(dy.v[k]) * widen(gamma.v[k]);
      dx.v[k] = narrow<T>(fmaf(rstd, g - mean_g - normal * mean_dot, widen(added.v[k])));
    }
    store(a.dx + begin + c, dx);
  }
}

// False where not even one row fits in shared memory.
template <class T, int kWidth, int kPacks>
bool run_groups(Context& context, const Backward<T>& a, const SumTargets& targets, Stream& stream) {
  const int most_bytes = static_cast<int>(context.gpu().shared_bytes) - 1024;  // some is static
  Groups groups;
  groups.threads = 32 * static_cast<int>(blocks_for(a.columns, 32 * kPacks * kWidth));
  // Of a group: its rows in flight, and its sums when the groups' are added up.
  const int row_bytes = (a.residual ? 3 : 2) * kPacks * groups.threads * kWidth * int{sizeof(T)};
  const int sum_bytes = 2 * a.columns * int{sizeof(float)};
  if (row_bytes > most_bytes) return false;
  groups.count =
      std::clamp(most_bytes / std::max(2 * row_bytes, sum_bytes), 1, kThreads / groups.threads);
  groups.stages = groups.count * 2 * row_bytes <= most_bytes ? 2 : 1;
  const int bytes = std::max(groups.count * groups.stages * row_bytes,
                             groups.count > 1 ? groups.count * sum_bytes : 0);
  const auto blocks = blocks_for(a.rows, groups.count, context.gpu().multiprocessors);
  const auto kernel = a.residual ? layer_norm_backward_kernel<T, kWidth, kPacks, true>
                                 : layer_norm_backward_kernel<T, kWidth, kPacks, false>;
  VP_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<blocks, groups.threads * groups.count, static_cast<size_t>(bytes), handle_of(stream)>>>(
      a, groups);
  VP_LAUNCHED();
  if (a.partial) add_partials(a.partial, blocks, a.columns, targets, handle_of(stream));
  return true;
}

// As few packs a thread as leave two rows or more to a block; more where the row is longer.
template <class T, int kWidth>
bool run_in_registers(Context& context, const Backward<T>& a, const SumTargets& targets,
                      Stream& stream) {
  const auto with = [&](auto packs) {
    return run_groups<T, kWidth, packs()>(context, a, targets, stream);
  };
  constexpr int kMost = kWidth == 1 ? 4 : 32 / kWidth;  // 64 registers for the sums
  const int packs = a.columns / kWidth;
  if (packs > kMost * kThreads) return false;
  if constexpr (kWidth == 1) {
    return with(std::integral_constant<int, 4>{});
  } else {
    if (packs <= 32) return with(std::integral_constant<int, 1>{});
    if (packs <= 512) return with(std::integral_constant<int, 2>{});
    if (packs <= 4 * kThreads) return with(std::integral_constant<int, 4>{});
    return with(std::integral_constant<int, kMost>{});
  }
}

template <class T, int kWidth>
void run(Context& context, const Backward<T>& a, const SumTargets& targets, Stream& stream) {
  if (run_in_registers<T, kWidth>(context, a, targets, stream)) return;
  if (a.partial) sum_strips<kWidth>(context, NormTerms<T>{a}, a.rows, a.columns, targets, stream);
  long_row_gradient_kernel<T, kWidth><<<blocks_for(a.rows, 1), kThreads, 0, handle_of(stream)>>>(a);
  VP_LAUNCHED();
}

}  // namespace

void CudaKernels::layer_norm_backward(TensorView dy, TensorView x, TensorView gamma,
                                      TensorView mean, TensorView rstd, TensorView residual,
                                      TensorView dx, TensorView dgamma, TensorView dbeta,
                                      Stream& stream) {
  shapes::layer_norm_backward(dy, x, gamma, mean, rstd, residual, dx, dgamma, dbeta);
  VP_CHECK(x.rows() < (1 << 30) && x.columns() < (1 << 30), "layer_norm_backward: x is {}",
           x.shape.text());
  if (x.elements() == 0) return;
  visit(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    Backward<T> a{as<T>(dy),       as<T>(x),  as<T>(gamma), as<T>(residual), as<float>(mean),
                  as<float>(rstd), as<T>(dx), nullptr,      x.rows(),        0};
    a.columns = static_cast<int>(x.columns());
    if (dgamma || dbeta) a.partial = reinterpret_cast<float*>(context_.scratch(stream));
    const bool wide = wide_rows<T>(x.columns(), {a.dy, a.x, a.gamma, a.residual, a.dx});
    visit_width<T>(wide, [&](auto width) {
      run<T, width()>(context_, a, {{as<float>(dgamma), as<float>(dbeta)}, 2}, stream);
    });
  });
}

}  // namespace voltapile::cuda
