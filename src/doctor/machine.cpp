// CPUs, memory, and the limits of a process.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "voltapile/base/format.hpp"
#include "voltapile/base/host.hpp"
#include "voltapile/base/units.hpp"

#include "parts.hpp"

namespace voltapile::doctor {

namespace {

namespace fs = std::filesystem;

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

std::vector<Finding> examine_numa() {
  std::vector<Finding> found;
  std::error_code error;
  std::vector<std::string> nodes;
  for (const auto& entry : fs::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename();
    if (name.rfind("node", 0) == 0 && name.size() > 4 && std::isdigit(name[4]) != 0)
      nodes.push_back(name);
  }
  std::sort(nodes.begin(), nodes.end());
  for (const std::string& node : nodes) {
    const std::string folder = "/sys/devices/system/node/" + node;
    const double total =
        1024 * std::atof(output_of("sed -n 's/.*MemTotal: *//p' " + folder + "/meminfo").c_str());
    found.push_back(
        {.what = "NUMA " + node,
         .value = format("CPUs {}, {}", first_line(folder + "/cpulist"), show_bytes(total))});
  }
  return found;
}

// What a container or a batch system grants, by control groups of either version.
void examine_groups(std::vector<Finding>& found) {
  double cpus = 0;
  const std::string both = first_line("/sys/fs/cgroup/cpu.max");  // "200000 100000"
  if (both.find(' ') != std::string::npos && both.rfind("max", 0) != 0)
    cpus = std::atof(both.c_str()) / std::atof(both.substr(both.find(' ')).c_str());
  const double quota = std::atof(first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").c_str());
  if (quota > 0)
    cpus = quota / std::atof(first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us").c_str());
  if (cpus > 0 && cpus < usable_cpus())
    found.push_back({Health::warning, "CPU quota", format("{:.1f} CPUs' time", cpus),
                     "threads beyond it are held up now and then: set run.threads so that all "
                     "ranks together have no more"});
}

Finding limit(const char* name, int resource, rlim_t least, bool as_bytes, Health otherwise,
              const std::string& advice) {
  rlimit now{};
  getrlimit(static_cast<__rlimit_resource>(resource), &now);
  const auto text = [as_bytes](rlim_t value) {
    if (value == RLIM_INFINITY) return std::string("unlimited");
    return as_bytes ? show_bytes(static_cast<double>(value))
                    : show_grouped(static_cast<int64_t>(value));
  };
  Finding finding{.what = name, .value = text(now.rlim_cur)};
  if (now.rlim_max != now.rlim_cur) finding.value += format(" of at most {}", text(now.rlim_max));
  if (now.rlim_cur >= least) return finding;
  finding.health = otherwise;
  finding.advice = advice;
  return finding;
}

Finding room(const std::string& folder, double least, double enough, const std::string& advice) {
  struct statvfs disk {};
  Finding finding{.what = folder};
  if (statvfs(folder.c_str(), &disk) != 0) {
    finding.health = Health::problem;
    finding.value = "not there";
    finding.advice = advice;
    return finding;
  }
  const double block = static_cast<double>(disk.f_frsize);
  const double free_bytes = block * static_cast<double>(disk.f_bavail);
  finding.value = format("{} free of {}", show_bytes(free_bytes),
                         show_bytes(block * static_cast<double>(disk.f_blocks)));
  if (free_bytes >= enough) return finding;
  finding.health = free_bytes < least ? Health::problem : Health::warning;
  finding.advice = advice;
  return finding;
}

}  // namespace

std::vector<Finding> examine_machine() {
  std::vector<Finding> found;
  const int online = static_cast<int>(std::thread::hardware_concurrency()), usable = usable_cpus();
  const long all = sysconf(_SC_NPROCESSORS_ONLN);
  std::string model = output_of("sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n1");
  model.erase(std::remove(model.begin(), model.end(), '\n'), model.end());
  Finding cpus{.what = "CPUs",
               .value = format("{} of {} usable here{}", usable > 0 ? usable : online, all,
                               model.empty() ? "" : ", " + model)};
  if (usable == 1 && all > 1) {
    cpus.health = Health::warning;
    cpus.advice = "this process is bound to one CPU: mpirun --bind-to none, srun --cpus-per-task";
  }
  found.push_back(cpus);
  examine_groups(found);
  for (Finding& node : examine_numa()) found.push_back(std::move(node));
  found.push_back(
      {.what = "free memory", .value = show_bytes(static_cast<double>(available_memory()))});
  return found;
}

std::vector<Finding> examine_limits() {
  constexpr rlim_t kFewFiles = 256, kFiles = 4096;
  constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
  const bool gpus = fs::exists("/dev/nvidiactl");
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  return {
      limit("open files", RLIMIT_NOFILE, kFiles, false,
            files.rlim_cur < kFewFiles ? Health::problem : Health::warning,
            "a checkpoint is read through a file a rank, and MPI has a socket a peer: ulimit -n "
            "(our job scripts raise it to the hard limit)"),
      limit("processes", RLIMIT_NPROC, 1024, false, Health::warning,
            "each rank has a dozen threads, which count: ulimit -u"),
      limit("locked memory", RLIMIT_MEMLOCK, RLIM_INFINITY, true,
            gpus ? Health::warning : Health::note,
            "GPUs and InfiniBand lock memory: ask the site for unlimited (Slurm: "
            "PropagateResourceLimitsExcept=MEMLOCK)"),
      room("/dev/shm", 64 * kMiB, kGiB,
           "ranks of a node talk through it: a container needs --shm-size=2g or more; or "
           "OMPI_MCA_btl_vader_backing_directory=/tmp"),
      room("/tmp", 16 * kMiB, 256 * kMiB,
           "MPI keeps its session files there: free some, or set "
           "TMPDIR"),
  };
}

}  // namespace voltapile::doctor
