#include "voltapile/device/shapes.hpp"

#include "kernels.hpp"
#include "parallel.hpp"
#include "vector_math.hpp"

namespace voltapile::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements
constexpr int64_t kRun = 1024;     // elements widened at a time

template <class T>
void add_all(ThreadPool& pool, const T* a, const T* b, T* out, int64_t n) {
  for_pieces(pool, n, kGrain, [=](int64_t begin, int64_t end) {
    if constexpr (std::is_same_v<T, Acc<T>>) {
      for (int64_t i = begin; i < end; ++i) out[i] = a[i] + b[i];
    } else {
      float left[kRun], right[kRun];
      for (int64_t at = begin; at < end; at += kRun) {
        const int64_t count = std::min(kRun, end - at);
        convert_run(a + at, count, left);
        convert_run(b + at, count, right);
        for (int64_t i = 0; i < count; ++i) left[i] += right[i];
        convert_run(left, count, out + at);
      }
    }
  });
}

template <class T>
void gelu_all(ThreadPool& pool, const T* pre, T* y, int64_t n) {
  for_pieces(pool, n, kGrain, [=](int64_t begin, int64_t end) {
    Acc<T> buffer[kRun];
    for (int64_t at = begin; at < end; at += kRun) {
      const int64_t count = std::min(kRun, end - at);
      convert_run(pre + at, count, buffer);
      for (int64_t i = 0; i < count; ++i) buffer[i] = gelu_of(buffer[i]);
      convert_run(buffer, count, y + at);
    }
  });
}

}  // namespace

void CpuKernels::fill(TensorView t, double value, Stream& stream) {
  if (t.dtype == DType::i32) {
    return stream.run_on_host(
        [=] { std::fill_n(t.as<int32_t>(), t.elements(), static_cast<int32_t>(value)); });
  }
  launch(t.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    const T element = convert<double, T>(value);
    T* data = t.as<T>();
    for_pieces(pool_, t.elements(), kGrain,
               [=](int64_t begin, int64_t end) { std::fill(data + begin, data + end, element); });
  });
}

void CpuKernels::cast(TensorView from, TensorView to, Stream& stream) {
  shapes::expect("cast", "to", to, to.dtype, from.elements());
  launch(from.dtype, stream, [=, this](auto from_tag) {
    using From = decltype(from_tag);
    dispatch(to.dtype, [&](auto to_tag) {
      using To = decltype(to_tag);
      const From* source = from.as<From>();
      To* target = to.as<To>();
      for_pieces(pool_, from.elements(), kGrain, [=](int64_t begin, int64_t end) {
        convert_run(source + begin, end - begin, target + begin);
      });
    });
  });
}

void CpuKernels::add(TensorView a, TensorView b, TensorView out, Stream& stream) {
  shapes::expect("add", "b", b, a.dtype, a.elements());
  shapes::expect("add", "out", out, a.dtype, a.elements());
  launch(a.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    add_all(pool_, a.as<T>(), b.as<T>(), out.as<T>(), a.elements());
  });
}

void CpuKernels::gelu(TensorView pre, TensorView y, Stream& stream) {
  shapes::expect("gelu", "y", y, pre.dtype, pre.elements());
  launch(pre.dtype, stream, [=, this](auto tag) {
    using T = decltype(tag);
    gelu_all(pool_, pre.as<T>(), y.as<T>(), pre.elements());
  });
}

}  // namespace voltapile::cpu
