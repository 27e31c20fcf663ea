#pragma once
#include <cstddef>
#include <string>

namespace voltapile {

// Name of this machine, for messages.
std::string host_name();

// Ranks of this job on this machine, as mpirun or Slurm say, and this one's number among them;
// `otherwise` where neither started it.
int local_ranks(int otherwise);
int local_rank(int otherwise);

// Bytes that this process could still take: what the system says is available, or less where a
// control group (a batch job's share of the machine) allows less.
size_t available_memory();

}  // namespace voltapile
