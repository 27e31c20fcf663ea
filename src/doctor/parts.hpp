// Private to doctor: the parts of an examination.
#pragma once
#include <string>
#include <vector>

#include "voltapile/doctor/doctor.hpp"

namespace voltapile::doctor {

std::vector<Finding> examine_machine();  // CPUs, NUMA nodes, memory, what a container grants
std::vector<Finding> examine_limits();   // of a process, /dev/shm, temporary files
std::vector<Finding> examine_mpi(const Readers& readers);
Readers find_readers();

// First line of a file, or nothing.
std::string first_line(const std::string& file);
// What a command prints; nothing where it fails or is not there.
std::string output_of(const std::string& command);
bool is_on_path(const std::string& program);

}  // namespace voltapile::doctor
