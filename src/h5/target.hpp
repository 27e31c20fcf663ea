// Where a file that is being written goes: HDF5 writes through a driver of ours, to the disk or to
// memory, and never meets a write that fails.
//
// Handed a failure, HDF5 1.10.8 keeps handles to half-freed objects (crashes were seen in later
// calls), and can call the next flush and close a success. So the driver keeps the first failure to
// itself, drops what follows, and who closes the file asks for it.
#pragma once
#include <string>
#include <vector>

#include <hdf5.h>

#include "voltapile/h5/h5.hpp"

namespace voltapile::h5 {

struct Target {
  Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  ~Target();

  void write(uint64_t at, const void* data, size_t bytes) noexcept;
  void read(uint64_t at, void* data, size_t bytes) noexcept;  // zeros beyond the end
  void resize(uint64_t bytes) noexcept;

  int fd = -1;                    // owned; -1: memory
  std::vector<std::byte> memory;  // as long as the file
  uint64_t end = 0;               // bytes in the file
  std::string fault;              // the first failure, in the system's words
};

// File access properties `access` of a file that is created on `target`, which must outlive it.
void use_target(hid_t access, Target& target, ExitCode code, const std::string& where);

}  // namespace voltapile::h5
