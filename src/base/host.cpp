#include "voltapile/base/host.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <sstream>

#include <unistd.h>

namespace voltapile {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// The first number of a file; `otherwise` where there is none ("max").
size_t number_in(const std::string& path, size_t otherwise) {
  size_t number = 0;
  return std::ifstream(path) >> number ? number : otherwise;
}

size_t field_of(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;)
    if (size_t number = 0; word == name && file >> number) return number;
  return 0;
}

// What the groups of this process, from its own up to the root, leave it. A group's file cache can
// be taken back.
size_t left_by_groups() {
  size_t left = kUnlimited;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t second = line.find(':', line.find(':') + 1);
    if (second == std::string::npos) continue;
    const bool unified = line.starts_with("0::");
    if (!unified && line.find("memory") == std::string::npos) continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (std::string group = line.substr(second + 1); !group.empty();
         group = group.substr(0, group.rfind('/'))) {
      const std::string folder = root + group;
      const size_t limit =
          number_in(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"), kUnlimited);
      if (limit == kUnlimited) continue;
      const size_t used =
          number_in(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"), 0);
      const size_t cache = field_of(folder + "/memory.stat", unified ? "file" : "total_cache");
      left = std::min(left, limit - std::min(limit, used - std::min(used, cache)));
      if (group == "/") break;
    }
  }
  return left;
}

int number_in_environment(std::initializer_list<const char*> names, int least, int otherwise) {
  for (const char* name : names)
    if (const char* value = std::getenv(name)) return std::max(least, std::atoi(value));
  return otherwise;
}

// Slurm's list of a step's tasks on each node, "4(x2),3": the part of the node that this is.
int tasks_here(const char* list, int node, int otherwise) {
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int tasks = 0, nodes = 1;
    if (std::sscanf(part.c_str(), "%d(x%d)", &tasks, &nodes) < 1 || tasks < 1) return otherwise;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return otherwise;
}

}  // namespace

// The launcher's own variables first: mpirun in a Slurm job inherits Slurm's. Open MPI, then MPICH
// and its descendants.
int local_ranks(int otherwise) {
  if (const int told =
          number_in_environment({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, 1, 0))
    return told;
  if (const char* list = std::getenv("SLURM_STEP_TASKS_PER_NODE"))
    return tasks_here(list, number_in_environment({"SLURM_NODEID"}, 0, 0), otherwise);
  return number_in_environment({"SLURM_NTASKS_PER_NODE"}, 1, otherwise);
}

int local_rank(int otherwise) {
  return number_in_environment({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"},
                               0, otherwise);
}

size_t available_memory() {
  return std::min(field_of("/proc/meminfo", "MemAvailable:") * 1024, left_by_groups());
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace voltapile
