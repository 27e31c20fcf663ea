#include "shape.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "voltapile/base/error.hpp"
#include "voltapile/base/units.hpp"

namespace voltapile {
namespace {

// Beside what the plan counts: the program, MPI, NCCL, the driver's host side, files on their way.
constexpr int64_t kCpuRankBytes = int64_t{1} << 30, kGpuRankBytes = int64_t{4} << 30;
// A last checkpoint: master weights and two moments, f32, at a speed that a busy file system keeps.
constexpr double kStateBytesPerParameter = 12, kSaveBytesPerSecond = 1e9;
constexpr double kLeastMarginSeconds = 180;
// From the job's start to the program's own clock: modules, MPI, the launcher.
constexpr double kStartSeconds = 300;

std::string show(const std::set<int>& numbers) {
  std::vector<std::string> texts;
  for (const int number : numbers) texts.push_back(std::to_string(number));
  return join(texts, " or ");
}

class Shaper {
 public:
  Shaper(const Plan& plan, const SubmitOptions& options, const std::vector<NodeKind>& kinds)
      : plan_(plan), options_(options), all_(kinds) {}

  JobShape shape() {
    shape_.ranks = plan_.mesh.size();
    choose_partition();
    if (plan_.deck.run.device == DeviceKind::cuda) choose_gpus();
    else choose_cpus();
    choose_time();
    refuse_if_any();
    spread();
    choose_memory();
    refuse_if_any();
    return std::move(shape_);
  }

 private:
  void fault(std::string text) { faults_.push_back(std::move(text)); }
  void note(std::string text) { shape_.notes.push_back(std::move(text)); }
  void refuse_if_any() const {
    if (faults_.empty()) return;
    throw Error(ExitCode::bad_input,
                "this job cannot be submitted as it stands:\n  " + join(faults_, "\n  "));
  }

  std::string partitions(bool with_gpus) const {
    std::set<std::string> names;
    for (const NodeKind& kind : all_)
      if (!with_gpus || kind.gpus > 0) names.insert(kind.partition);
    return join({names.begin(), names.end()}, ", ");
  }

  void choose_partition() {
    shape_.partition = options_.partition;
    if (all_.empty()) return;
    if (shape_.partition.empty()) {
      const auto found = std::find_if(all_.begin(), all_.end(),
                                      [](const NodeKind& kind) { return kind.is_default; });
      if (found == all_.end())
        return fault(
            format("--partition: this cluster has no default; it has {}", partitions(false)));
      shape_.partition = found->partition;
      note(format("partition: {}, the cluster's default (--partition)", shape_.partition));
    }
    for (const NodeKind& kind : all_)
      if (kind.partition == shape_.partition) kinds_.push_back(kind);
    if (kinds_.empty())
      fault(format("--partition {}: this cluster has {}", shape_.partition, partitions(false)));
  }

  // The one number that all nodes of the partition share, or 0 with a fault that names the option.
  int common(int NodeKind::*number, const char* option, const char* what) {
    std::set<int> values;
    for (const NodeKind& kind : kinds_)
      if (kind.*number > 0) values.insert(kind.*number);
    if (values.size() == 1) return *values.begin();
    if (values.size() > 1)
      fault(format("{}: nodes of {} have {} {}", option, shape_.partition, show(values), what));
    return 0;
  }

  void choose_gpus() {
    int gpus = options_.gpus_per_node;
    if (gpus == 0 && !kinds_.empty()) {
      const size_t before = faults_.size();
      gpus = common(&NodeKind::gpus, "--gpus-per-node", "GPUs");
      if (gpus == 0 && faults_.size() == before) {
        fault(
            format("partition {} has no GPUs that sinfo knows of, and the deck says run.device = "
                   "\"cuda\"; with GPUs: {} (--partition, or --gpus-per-node)",
                   shape_.partition, partitions(true).empty() ? "none" : partitions(true)));
      }
      if (gpus > 0) note(format("GPUs: {} a node, by sinfo (--gpus-per-node)", gpus));
    } else if (gpus == 0 && faults_.empty()) {
      fault("--gpus-per-node: how many GPUs a node has is not known here");
    }
    if (gpus <= 0) return;
    shape_.per_node = options_.tasks_per_node > 0 ? std::min(options_.tasks_per_node, gpus) : gpus;
    shape_.gpus_per_node = gpus;  // until the ranks are spread: one each then
    shape_.cpus_per_task = options_.cpus_per_task;
    if (shape_.cpus_per_task > 0) return;
    if (const int cpus = least_cpus(); cpus > 0) {
      shape_.cpus_per_task = std::max(1, cpus / gpus);
      note(format("CPUs: {} of a node's {} for each of its {} GPUs (--cpus-per-task)",
                  shape_.cpus_per_task, cpus, gpus));
    } else {
      note("CPUs: the queue's default for each rank; --cpus-per-task asks for more");
    }
  }

  int least_cpus() const {
    int cpus = 0;
    for (const NodeKind& kind : kinds_) {
      if (plan_.deck.run.device == DeviceKind::cuda && kind.gpus == 0) continue;
      cpus = cpus == 0 ? kind.cpus : std::min(cpus, kind.cpus);
    }
    return cpus;
  }

  void choose_cpus() {
    shape_.cpus_per_task = options_.cpus_per_task;
    if (shape_.cpus_per_task == 0 && plan_.deck.run.threads > 0) {
      shape_.cpus_per_task = plan_.deck.run.threads;
      note(
          format("CPUs: {} for each rank, by run.threads (--cpus-per-task)", shape_.cpus_per_task));
    }
    if (shape_.cpus_per_task == 0) {
      fault("--cpus-per-task: how many CPUs a rank shall have; run.threads does not say");
      return;
    }
    shape_.per_node = options_.tasks_per_node;
    if (shape_.per_node > 0) return;
    const int cpus = least_cpus();
    if (cpus == 0) {
      if (faults_.empty())
        fault("--tasks-per-node: how many ranks fit on a node is not known here");
    } else if (cpus < shape_.cpus_per_task) {
      fault(format("--cpus-per-task {}: a node of {} has {} CPUs", shape_.cpus_per_task,
                   shape_.partition, cpus));
    } else {
      shape_.per_node = cpus / shape_.cpus_per_task;
    }
  }

  void choose_time() {
    std::optional<double> limit;
    for (const NodeKind& kind : kinds_)
      if (kind.limit_seconds) limit = std::max(limit.value_or(0), *kind.limit_seconds);
    const std::string at_most =
        limit ? format("; {} allows {}", shape_.partition, show_seconds(*limit)) : "";
    if (!options_.time.empty()) {
      const auto seconds = parse_seconds(options_.time);
      if (!seconds || *seconds < 60)
        return fault(
            format("--time {}: at least a minute, as 30m, 71h30m or 2d{}", options_.time, at_most));
      shape_.seconds = *seconds;
    } else if (plan_.deck.run.walltime_seconds) {
      shape_.seconds = *plan_.deck.run.walltime_seconds + kStartSeconds;
      note(format("time: run.walltime and {} for the start (--time)", show_seconds(kStartSeconds)));
    } else {
      return fault(
          format("--time: how long one allocation may last, as 30m, 71h30m or 2d{}", at_most));
    }
    if (limit && shape_.seconds > *limit)
      fault(format("--time: {} is asked for{}", show_seconds(shape_.seconds), at_most));
  }

  void spread() {
    const bool cuda = shape_.gpus_per_node > 0;
    shape_.nodes = (shape_.ranks + shape_.per_node - 1) / shape_.per_node;
    shape_.per_node = (shape_.ranks + shape_.nodes - 1) / shape_.nodes;
    if (cuda) shape_.gpus_per_node = shape_.per_node;  // one rank has one GPU
    int there = 0;
    for (const NodeKind& kind : kinds_)
      if (!cuda || kind.gpus >= shape_.per_node) there += kind.nodes;
    if (!kinds_.empty() && shape_.nodes > there)
      fault(format("{} ranks need {} nodes with {} each, and {} has {}", shape_.ranks, shape_.nodes,
                   shape_.per_node, shape_.partition, there));
    note(format("ranks: {} = parallel.pipeline x data x tensor ({}), {} a node on {} node{}",
                shape_.ranks, plan_.mesh.text(), shape_.per_node, shape_.nodes,
                shape_.nodes == 1 ? "" : "s"));
  }

  void choose_memory() {
    const bool cuda = shape_.gpus_per_node > 0;
    size_t most = 0;
    for (int pp = 0; pp < plan_.mesh.pp; ++pp) {
      const size_t own = plan_.bytes_at(Home::host, pp) + (cuda ? 0 : plan_.device_bytes(pp));
      most = std::max(most, own);
    }
    const int64_t beside = cuda ? kGpuRankBytes : kCpuRankBytes;
    shape_.node_bytes = shape_.per_node * (static_cast<int64_t>(most) + beside);
    int64_t there = 0;
    for (const NodeKind& kind : kinds_) there = std::max(there, kind.memory_bytes);
    if (options_.memory.empty()) {
      note(format("memory: {} ranks x ({} by the plan + {} for the program, MPI and files) (--mem)",
                  shape_.per_node, show_bytes(static_cast<double>(most)),
                  show_bytes(static_cast<double>(beside))));
      if (there > 0 && shape_.node_bytes > there) {
        throw Error(ExitCode::does_not_fit,
                    format("{} ranks on a node need {} of its memory, and the nodes of {} have {}: "
                           "fewer with --tasks-per-node, or less with --mem if you know better",
                           shape_.per_node, show_bytes(static_cast<double>(shape_.node_bytes)),
                           shape_.partition, show_bytes(static_cast<double>(there))));
      }
    }
    const double state =
        kStateBytesPerParameter * static_cast<double>(plan_.architecture.parameter_count());
    const double save = 60 + state / kSaveBytesPerSecond;
    shape_.margin_seconds = std::max(kLeastMarginSeconds, 60 * std::ceil((save + 60) / 60));
    note(format("signal: {} before the limit, for a last checkpoint of {}",
                show_seconds(shape_.margin_seconds), show_bytes(state)));
    if (shape_.seconds <= shape_.margin_seconds)
      fault(format("--time: {} leaves nothing before the last checkpoint's {}",
                   show_seconds(shape_.seconds), show_seconds(shape_.margin_seconds)));
  }

  const Plan& plan_;
  const SubmitOptions& options_;
  const std::vector<NodeKind>& all_;
  std::vector<NodeKind> kinds_;  // of the chosen partition
  JobShape shape_;
  std::vector<std::string> faults_;
};

}  // namespace

JobShape job_shape(const Plan& plan, const SubmitOptions& options,
                   const std::vector<NodeKind>& kinds) {
  return Shaper(plan, options, kinds).shape();
}

}  // namespace voltapile
