// The line that hands a planned run to the queue of a cluster.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "voltapile/plan/plan.hpp"

namespace voltapile {

enum class Queue { slurm, pbs, lsf };

// Nodes of one kind in one partition, as `sinfo -h -e -o "%P|%D|%c|%m|%G|%l"` lists them.
struct NodeKind {
  std::string partition;
  bool is_default = false;  // of the cluster
  int nodes = 0, cpus = 0, gpus = 0;
  int64_t memory_bytes = 0;
  std::optional<double> limit_seconds;  // empty: none
};
// Lines that are not of this form are left out.
std::vector<NodeKind> parse_sinfo(std::string_view text);

struct Cluster {
  std::vector<Queue> queues;    // whose commands are on PATH
  std::vector<NodeKind> kinds;  // empty where sinfo is not there or does not answer
};
Cluster look_at_cluster();

struct SubmitOptions {
  std::string deck;                    // as the job will be given it
  std::vector<std::string> overrides;  // section.key=value
  std::string jobscripts;              // the folder of slurm.sbatch, pbs.sh and lsf.sh
  std::string program;                 // handed over as VOLTAPILE; empty: the job finds it
  std::string queue;                   // "slurm", "pbs", "lsf", or empty: whose commands are there
  std::string partition, time, account, memory;
  int gpus_per_node = 0, tasks_per_node = 0, cpus_per_task = 0;  // 0: not given
  std::vector<std::string> more;  // options for the queue's own command, as they are
};

struct Submission {
  std::vector<std::string> environment;  // NAME=value, before the command
  std::vector<std::string> command;
  std::vector<std::string> notes;  // how each number came about, one a line
  // As one would type it in a shell.
  std::string line() const;
};

// Pure. Error(bad_input) lists everything that neither the deck, nor the options, nor the cluster
// says, each with the option that does; and what a partition does not allow. Error(does_not_fit)
// when a node has less memory than its ranks need.
Submission make_submission(const Plan& plan, const SubmitOptions& options, const Cluster& cluster);

// Runs the command. Error(failure) when it cannot be run or does not succeed.
void submit(const Submission& submission);

// The folder of the job scripts that belong to the program at `executable`: VOLTAPILE_JOBSCRIPTS,
// beside the build folder, or installed. Error(bad_input) when there is none.
std::string find_jobscripts(const std::string& executable);
// What a job must be told to run this program; empty where the scripts in `jobscripts` find it.
std::string program_for_jobs(const std::string& executable, const std::string& jobscripts);
// The running program's file.
std::string own_executable();

}  // namespace voltapile
