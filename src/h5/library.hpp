// What every call of this module goes through.
#pragma once
#include <mutex>
#include <string>

#include <hdf5.h>

#include "voltapile/h5/h5.hpp"

namespace voltapile::h5 {

// Held for the length of a call into HDF5; recursive, since handles close inside calls.
class Turn {
 public:
  Turn();

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

// Throws Error(code) "<where>: <what>: <HDF5's first cause>" from HDF5's error stack.
[[noreturn]] void throw_stack(ExitCode code, const std::string& where, const char* what);

// Passes HDF5's answer through; negative means a fault.
template <class T>
T check(T answer, ExitCode code, const std::string& where, const char* what) {
  if (answer < 0) throw_stack(code, where, what);
  return answer;
}

hid_t memory_type(DType type);
hid_t file_type(DType type);

Handle make_space(const Shape& shape, ExitCode code, const std::string& where);
void select_box(hid_t space, const Box& box, ExitCode code, const std::string& where);

}  // namespace voltapile::h5
