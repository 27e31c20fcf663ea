#include "arithmetic.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace voltapile::comm {
namespace {

constexpr int64_t kPieceGranule = 32;  // elements; keeps two ranks off one cache line
constexpr int64_t kBlock = 1024;       // elements; the accumulators stay in the first-level cache

template <class T>
using Accumulator = std::conditional_t<sizeof(T) == 2, float, T>;

template <Reduction op, class A>
A combine(A a, A b) {
  if constexpr (op == Reduction::sum) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  } else if constexpr (op == Reduction::max) {
    return a > b || a != a ? a : b;
  } else {
    return a < b || a != a ? a : b;
  }
}

template <class T, Reduction op>
void reduce_typed(std::span<const std::byte* const> inputs, std::byte* out, int64_t elements) {
  using A = Accumulator<T>;
  alignas(64) A total[kBlock];
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t length = std::min(kBlock, elements - begin);
    const T* first = reinterpret_cast<const T*>(inputs[0]) + begin;
    for (int64_t i = 0; i < length; ++i) total[i] = static_cast<A>(first[i]);
    for (const std::byte* bytes : inputs.subspan(1)) {
      const T* input = reinterpret_cast<const T*>(bytes) + begin;
      for (int64_t i = 0; i < length; ++i)
        total[i] = combine<op, A>(total[i], static_cast<A>(input[i]));
    }
    T* result = reinterpret_cast<T*>(out) + begin;
    for (int64_t i = 0; i < length; ++i) result[i] = static_cast<T>(total[i]);
  }
}

template <class T>
void reduce_with(Reduction op, std::span<const std::byte* const> inputs, std::byte* out,
                 int64_t elements) {
  switch (op) {
    case Reduction::sum: return reduce_typed<T, Reduction::sum>(inputs, out, elements);
    case Reduction::max: return reduce_typed<T, Reduction::max>(inputs, out, elements);
    case Reduction::min: return reduce_typed<T, Reduction::min>(inputs, out, elements);
  }
}

}  // namespace

Range piece_of(int64_t elements, int size, int rank) {
  const int64_t even = (elements + size - 1) / size;
  const int64_t length = (even + kPieceGranule - 1) / kPieceGranule * kPieceGranule;
  return {std::min(elements, length * rank), std::min(elements, length * (rank + 1))};
}

void reduce_in_order(std::span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                     DType dtype, Reduction op) {
  switch (dtype) {
    case DType::f16: return reduce_with<Half>(op, inputs, out, elements);
    case DType::bf16: return reduce_with<BFloat16>(op, inputs, out, elements);
    case DType::f32: return reduce_with<float>(op, inputs, out, elements);
    case DType::f64: return reduce_with<double>(op, inputs, out, elements);
    case DType::u8: return reduce_with<uint8_t>(op, inputs, out, elements);
    case DType::i32: return reduce_with<int32_t>(op, inputs, out, elements);
    case DType::i64: return reduce_with<int64_t>(op, inputs, out, elements);
  }
}

void copy_bytes(void* out, const void* in, size_t bytes) {
  if (bytes > 0 && out != in) std::memcpy(out, in, bytes);
}

}  // namespace voltapile::comm
