#include <algorithm>
#include <cmath>
#include <set>

#include "voltapile/base/error.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/submit/submit.hpp"

#include "shape.hpp"

namespace voltapile {
namespace {

// "1-02:03:04" or "26:03:04", as each queue writes a time.
std::string clock(double seconds) {
  const auto s = static_cast<int64_t>(std::ceil(seconds));
  return format("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

Queue queue_of(const SubmitOptions& options, const Cluster& cluster) {
  if (options.queue == "slurm") return Queue::slurm;
  if (options.queue == "pbs") return Queue::pbs;
  if (options.queue == "lsf") return Queue::lsf;
  if (!options.queue.empty()) {
    throw Error(ExitCode::bad_input, format("--queue {}: slurm, pbs or lsf", options.queue));
  }
  if (!cluster.queues.empty()) return cluster.queues.front();
  throw Error(ExitCode::bad_input,
              "no queue here: neither sbatch (Slurm), qsub (PBS) nor bsub (LSF) is on PATH. Name "
              "one by --queue to see its line, or train without: jobscripts/mpirun.sh DECK");
}

std::vector<std::string> set_options(const SubmitOptions& options) {
  std::vector<std::string> words;
  for (const std::string& text : options.overrides) {
    words.emplace_back("--set");
    words.push_back(text);
  }
  return words;
}

class Line {
 public:
  Line(const Plan& plan, const SubmitOptions& options, const JobShape& shape)
      : plan_(plan), options_(options), shape_(shape) {
    if (!options.program.empty()) out_.environment.push_back("VOLTAPILE=" + options.program);
    out_.notes = shape.notes;
  }

  Submission slurm() {
    add("sbatch");
    add("--job-name=" + plan_.deck.run.name);
    option("--partition=", shape_.partition);
    option("--account=", options_.account);
    add(format("--nodes={}", shape_.nodes));
    add(format("--ntasks={}", shape_.ranks));
    add(format("--ntasks-per-node={}", shape_.per_node));
    if (shape_.gpus_per_node > 0) add(format("--gpus-per-node={}", shape_.gpus_per_node));
    if (shape_.cpus_per_task > 0) add(format("--cpus-per-task={}", shape_.cpus_per_task));
    add("--mem=" + (options_.memory.empty() ? format("{}M", megabytes()) : options_.memory));
    add("--time=" + clock(shape_.seconds));
    // slurm.sbatch itself asks for the signal this early.
    if (shape_.margin_seconds > kScriptMargin)
      add(format("--signal=B:USR1@{:.0f}", shape_.margin_seconds));
    return finish("slurm.sbatch", {options_.deck}, set_options(options_));
  }

  Submission pbs() {
    add("qsub");
    add("-N");
    add(plan_.deck.run.name.substr(0, 15));  // older PBS takes no more
    add("-l");
    const int full = shape_.ranks / shape_.per_node, rest = shape_.ranks % shape_.per_node;
    std::string select = "select=" + pbs_chunk(full, shape_.per_node);
    if (rest > 0) select += "+" + pbs_chunk(1, rest);
    add(select);
    add("-l");
    add("walltime=" + clock(shape_.seconds));
    if (!shape_.partition.empty()) add("-q"), add(shape_.partition);
    if (!options_.account.empty()) add("-A"), add(options_.account);
    std::string passed = "VOLTAPILE_DECK=" + options_.deck;
    if (!options_.overrides.empty())
      passed += ",VOLTAPILE_CHANGES=" + join(set_options(options_), " ");
    passed += ",VOLTAPILE_JOBSCRIPTS=" + options_.jobscripts;
    if (!options_.program.empty()) passed += ",VOLTAPILE=" + options_.program;
    if (shape_.margin_seconds > kPbsMargin)
      passed += format(",VOLTAPILE_MARGIN={:.0f}", shape_.margin_seconds);
    for (const std::string& text : options_.overrides) {
      if (text.find_first_of(", \t'\"\\") == std::string::npos) continue;
      throw Error(ExitCode::bad_input,
                  format("--set {}: qsub -v cannot carry it; write it into the deck", text));
    }
    add("-v");
    add(passed);
    out_.environment.clear();  // qsub takes -v alone
    return finish("pbs.sh", {}, {});
  }

  Submission lsf() {
    add("bsub");
    add("-J");
    add(plan_.deck.run.name);
    add("-o");
    add(plan_.deck.run.name + ".%J.log");
    add("-n");
    add(format("{}", shape_.ranks));
    add("-R");
    add(format("span[ptile={}]", shape_.per_node));
    if (shape_.cpus_per_task > 0)
      add("-R"), add(format("affinity[core({})]", shape_.cpus_per_task));
    if (shape_.gpus_per_node > 0) add("-gpu"), add(format("num={}", shape_.gpus_per_node));
    add("-W");
    const auto minutes = static_cast<int64_t>(std::ceil(shape_.seconds / 60));
    add(format("{}:{:02}", minutes / 60, minutes % 60));
    if (!shape_.partition.empty()) add("-q"), add(shape_.partition);
    if (!options_.account.empty()) add("-P"), add(options_.account);
    // Back into the queue when a node fails, and after exit code 75.
    for (const char* word : {"-r", "-Q", "75", "-wa", "USR1", "-wt"}) add(word);
    add(format("{:.0f}", std::max(5.0, std::ceil(shape_.margin_seconds / 60))));
    out_.notes.push_back(
        format("memory: {} MB a node; LSF's units differ between sites: add it by "
               "--more=-M --more=SIZE if yours limits it",
               megabytes()));
    return finish("lsf.sh", {options_.deck}, set_options(options_));
  }

 private:
  static constexpr double kScriptMargin = 180;  // #SBATCH --signal in slurm.sbatch
  static constexpr double kPbsMargin = 300;     // VOLTAPILE_MARGIN's default in pbs.sh

  void add(std::string word) { out_.command.push_back(std::move(word)); }
  void option(const char* name, const std::string& value) {
    if (!value.empty()) add(name + value);
  }
  int64_t megabytes() const { return (shape_.node_bytes + (1 << 20) - 1) >> 20; }

  std::string pbs_chunk(int count, int ranks) const {
    std::string text = format("{}", count);
    if (shape_.cpus_per_task > 0) text += format(":ncpus={}", shape_.cpus_per_task * ranks);
    text += format(":mpiprocs={}", ranks);
    if (shape_.gpus_per_node > 0) text += format(":ngpus={}", ranks);
    text += ":mem=" + (options_.memory.empty() ? format("{}mb", megabytes()) : options_.memory);
    return text;
  }

  Submission finish(const char* script, std::vector<std::string> first,
                    std::vector<std::string> rest) {
    for (const std::string& word : options_.more) add(word);
    add(options_.jobscripts + "/" + script);
    for (auto& words : {first, rest})
      for (const std::string& word : words) add(word);
    return std::move(out_);
  }

  const Plan& plan_;
  const SubmitOptions& options_;
  const JobShape& shape_;
  Submission out_;
};

}  // namespace

std::string Submission::line() const {
  std::vector<std::string> words;
  for (const auto* part : {&environment, &command})
    for (const std::string& word : *part) words.push_back(shell_word(word));
  return join(words, " ");
}

Submission make_submission(const Plan& plan, const SubmitOptions& options, const Cluster& cluster) {
  const Queue queue = queue_of(options, cluster);
  const JobShape shape =
      job_shape(plan, options, queue == Queue::slurm ? cluster.kinds : std::vector<NodeKind>());
  Line line(plan, options, shape);
  switch (queue) {
    case Queue::slurm: return line.slurm();
    case Queue::pbs: return line.pbs();
    case Queue::lsf: return line.lsf();
  }
  VP_CHECK(false, "queue {}", static_cast<int>(queue));
}

}  // namespace voltapile
