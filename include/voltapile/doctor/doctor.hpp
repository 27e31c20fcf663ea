// Looks at one node: what it has, what limits a job there, what is missing, and which variables are
// set that nothing reads. Starts no MPI and uses no GPU.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "voltapile/device/nvml.hpp"

namespace voltapile {

// A problem keeps runs from working; a warning makes them slow or fragile.
enum class Health { good, note, warning, problem };

struct Finding {
  Health health = Health::good;
  std::string what, value;  // "open files", "1,024 of at most 4,096"
  std::string advice;       // one line; empty where all is well
};

std::vector<Finding> examine_node();

// As a table, problems where they were found; ends with a line that counts them.
std::string describe(const std::vector<Finding>& findings);
// exit code 5 rather than 0.
bool has_problems(const std::vector<Finding>& findings);

// Who would read a variable of the environment.
struct Readers {
  // Text of the NCCL library that would be loaded, of Open MPI's libraries; empty: not here.
  std::string nccl, open_mpi;
  // Open MPI's parameters, as `ompi_info --all --parsable` prints them; empty: cannot be told.
  std::string parameters;
};
// A finding for each variable named NCCL_*, OMPI_* or VOLTAPILE_* that nothing reads.
std::vector<Finding> unread_variables(const std::vector<std::string>& names,
                                      const Readers& readers);

// GPUs by NVML, which is opened when it is called; a library of that name, or the driver's.
std::vector<Finding> examine_gpus(const std::string& library = Nvml::kLibrary);

}  // namespace voltapile
