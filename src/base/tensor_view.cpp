#include "voltapile/base/tensor_view.hpp"

namespace voltapile {

std::string_view name_of(DType type) {
  switch (type) {
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::u8: return "u8";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
  }
  return "?";
}

std::string Shape::text() const {
  std::string text = "(";
  for (int dim = 0; dim < dims_; ++dim) text += format("{}{}", dim ? ", " : "", (*this)[dim]);
  return text + ")";
}

}  // namespace voltapile
