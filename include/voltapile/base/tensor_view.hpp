// Shape and TensorView: a dense row-major block of memory that somebody else owns.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "voltapile/base/dtype.hpp"
#include "voltapile/base/error.hpp"

namespace voltapile {

// Up to six extents, outermost first. The empty shape has one element (a scalar).
class Shape {
 public:
  static constexpr int kMaxDims = 6;
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) {
    VP_CHECK(extents.size() <= kMaxDims, "a shape has at most {} dims, not {}", kMaxDims,
             extents.size());
    for (int64_t extent : extents) extents_[static_cast<size_t>(dims_++)] = extent;
  }
  int dims() const { return dims_; }
  int64_t operator[](int dim) const {
    return extents_[static_cast<size_t>(dim < 0 ? dim + dims_ : dim)];
  }
  int64_t elements() const {
    int64_t product = 1;
    for (int dim = 0; dim < dims_; ++dim) product *= extents_[static_cast<size_t>(dim)];
    return product;
  }
  // The shape seen as a matrix: all leading dims folded into rows, the last dim as columns.
  int64_t columns() const { return dims_ == 0 ? 1 : extents_[static_cast<size_t>(dims_ - 1)]; }
  int64_t rows() const { return columns() == 0 ? 0 : elements() / columns(); }
  void append(int64_t extent) {
    VP_CHECK(dims_ < kMaxDims, "a shape has at most {} dims", kMaxDims);
    extents_[static_cast<size_t>(dims_++)] = extent;
  }
  void set(int dim, int64_t extent) {
    extents_[static_cast<size_t>(dim < 0 ? dim + dims_ : dim)] = extent;
  }
  bool operator==(const Shape&) const = default;
  std::string text() const;  // "(2, 3, 5)"

 private:
  std::array<int64_t, kMaxDims> extents_{};
  int dims_ = 0;
};

// Never owns. An empty view (data == nullptr) stands for an operand that is not there.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  explicit operator bool() const { return data != nullptr; }
  int64_t elements() const { return shape.elements(); }
  int64_t rows() const { return shape.rows(); }
  int64_t columns() const { return shape.columns(); }
  size_t bytes() const { return static_cast<size_t>(elements()) * bytes_of(dtype); }

  template <class T>
  T* as() const {
    VP_CHECK(dtype_of<T>::value == dtype, "a tensor of {} was read as {}", name_of(dtype),
             name_of(dtype_of<T>::value));
    return static_cast<T*>(data);
  }
  // The same memory under another shape with the same number of elements.
  TensorView reshaped(Shape other) const {
    VP_CHECK(other.elements() == elements(), "{} does not reshape to {}", shape.text(),
             other.text());
    return {data, dtype, other};
  }
  // Rows [begin, end) of the matrix view (leading dims folded).
  TensorView slice_rows(int64_t begin, int64_t end) const {
    VP_CHECK(0 <= begin && begin <= end && end <= rows(), "rows {}:{} of {}", begin, end,
             shape.text());
    return {
        static_cast<std::byte*>(data) + static_cast<size_t>(begin * columns()) * bytes_of(dtype),
        dtype, Shape{end - begin, columns()}};
  }
  // Elements [begin, end) of the flattened tensor.
  TensorView slice_flat(int64_t begin, int64_t end) const {
    VP_CHECK(0 <= begin && begin <= end && end <= elements(), "elements {}:{} of {}", begin, end,
             shape.text());
    return {static_cast<std::byte*>(data) + static_cast<size_t>(begin) * bytes_of(dtype), dtype,
            Shape{end - begin}};
  }
};

}  // namespace voltapile
