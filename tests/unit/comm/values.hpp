// Values for communicator tests, and what the operations must make of them: plain loops.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "voltapile/comm/communicator.hpp"

namespace voltapile::testing {

// All of a grid that is sampled otherwise.
inline bool full() {
  const char* value = std::getenv("VOLTAPILE_FULL");
  return value != nullptr && std::string_view(value) == "1";
}

inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

template <class F>
auto with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f16: return f(Half{});
    case DType::bf16: return f(BFloat16{});
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::u8: return f(uint8_t{});
    case DType::i32: return f(int32_t{});
    case DType::i64: return f(int64_t{});
  }
  throw Error(ExitCode::failure, "no such type");
}

// Memory for a tensor, filled with a pattern of its own.
class Block {
 public:
  Block(DType dtype, int64_t elements)
      : bytes_(static_cast<size_t>(elements) * bytes_of(dtype) + 1, std::byte{0xff}),
        view_{bytes_.data(), dtype, {elements}} {}
  Block(Block&&) = default;  // the view's memory moves along
  Block& operator=(Block&&) = default;
  const TensorView& view() const { return view_; }
  TensorView part(int64_t begin, int64_t end) const { return view_.slice_flat(begin, end); }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

// Floating values of many magnitudes, so that another order of summation gives other bits.
inline void fill(const TensorView& t, uint64_t seed) {
  with_type(t.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < t.elements(); ++i) {
      const uint64_t bits = mixed(seed * 1000003 + static_cast<uint64_t>(i));
      if constexpr (std::is_integral_v<T>) {
        t.as<T>()[i] = static_cast<T>(bits);
      } else {
        const double unit = static_cast<double>(bits >> 40) / double(1 << 24) - 0.5;
        t.as<T>()[i] = T(static_cast<float>(std::ldexp(unit, static_cast<int>(bits % 9))));
      }
    }
    return 0;
  });
}

inline Block filled(DType dtype, int64_t elements, uint64_t seed) {
  Block block(dtype, elements);
  fill(block.view(), seed);
  return block;
}

// Element by element, rank 0 first; 16-bit types in float.
inline Block reduced(const std::vector<Block>& inputs, Reduction op) {
  const TensorView& first = inputs.front().view();
  Block result(first.dtype, first.elements());
  with_type(first.dtype, [&](auto zero) {
    using T = decltype(zero);
    using A = std::conditional_t<sizeof(T) == 2, float, T>;
    for (int64_t i = 0; i < first.elements(); ++i) {
      A total = A(first.as<T>()[i]);
      for (size_t rank = 1; rank < inputs.size(); ++rank) {
        const A next = A(inputs[rank].view().as<T>()[i]);
        if (op == Reduction::max) total = next > total ? next : total;
        else if (op == Reduction::min) total = next < total ? next : total;
        else if constexpr (std::is_integral_v<T>)
          total = static_cast<T>(static_cast<uint64_t>(total) + static_cast<uint64_t>(next));
        else total = total + next;
      }
      result.view().as<T>()[i] = T(total);
    }
    return 0;
  });
  return result;
}

// Elements from `first` on of the inputs' sum, added in any order with a rounding to their own type
// after each step.
inline bool is_near_sum(const TensorView& got, const std::vector<Block>& inputs, int64_t first) {
  return with_type(got.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < got.elements(); ++i) {
      if constexpr (std::is_integral_v<T>) {
        uint64_t sum = 0;
        for (const Block& input : inputs)
          sum += static_cast<uint64_t>(input.view().as<T>()[first + i]);
        if (got.as<T>()[i] != static_cast<T>(sum)) return false;
      } else {
        const double unit = got.dtype == DType::bf16  ? 0x1p-8
                            : got.dtype == DType::f16 ? 0x1p-11
                            : got.dtype == DType::f32 ? 0x1p-24
                                                      : 0x1p-53;
        double sum = 0, size = 0;
        for (const Block& input : inputs) {
          const double value =
              static_cast<double>(static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(
                  input.view().as<T>()[first + i]));
          sum += value;
          size += std::abs(value);
        }
        const double error =
            std::abs(static_cast<double>(static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(
                         got.as<T>()[i])) -
                     sum);
        // Not "greater": a NaN fails.
        if (!(error <= unit * size * static_cast<double>(inputs.size()))) return false;
      }
    }
    return true;
  });
}

inline bool same_bits(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.elements() == b.elements() &&
         (a.bytes() == 0 || std::memcmp(a.data, b.data, a.bytes()) == 0);
}

inline constexpr DType kAllTypes[] = {DType::f16, DType::bf16, DType::f32, DType::f64,
                                      DType::u8,  DType::i32,  DType::i64};
inline constexpr Reduction kAllReductions[] = {Reduction::sum, Reduction::max, Reduction::min};

}  // namespace voltapile::testing
