// What `voltapile bench --write` measured of a machine, or what is taken where nobody has.
#pragma once
#include <cstddef>
#include <string>

namespace voltapile {

// Of one rank, while every rank of its machine is at work.
struct Hardware {
  std::string device = "a V100-32GB behind PCIe 3";
  size_t overhead_bytes = 0;                // device memory that the driver and its libraries hold
  double product_flops_per_second = 90e12;  // matrix products in the working type
  double copy_bytes_per_second = 0.75e12;   // device memory, read and written
  double host_to_device_bytes_per_second = 12e9, device_to_host_bytes_per_second = 12e9;
  double link_bytes_per_second = 12e9;  // between two ranks
  double host_bytes_per_second = 40e9;  // the host optimizer, read and written
  double disk_bytes_per_second = 1.5e9;
  bool disk_is_measured = false;
};

// A hardware file's figures; what it does not give keeps its default. Error(bad_input) names the
// file, line and column of what cannot be read.
Hardware load_hardware(const std::string& path);

}  // namespace voltapile
