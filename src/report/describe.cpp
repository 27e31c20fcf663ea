#include <algorithm>
#include <cmath>
#include <ostream>

#include "voltapile/base/text_table.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/report/report.hpp"

#include "figures.hpp"
#include "gpus.hpp"

namespace voltapile {
namespace {

constexpr std::string_view kIndent = "  ";
constexpr size_t kNameWidth = 13;
constexpr size_t kMostRanks = 16, kMostOperations = 12;

class Report {
 public:
  Report(const Run& run, int columns)
      : run_(run), columns_(static_cast<size_t>(std::max(columns, 80))) {}

  std::string text() {
    title();
    progress();
    if (run_.trace) gpus();
    if (run_.analysis) {
      recorded();
      operations();
      ranks();
    } else {
      text_ += "\nNothing was traced: set trace.steps in the deck, say to \"10:15\".\n";
    }
    advice();
    return std::move(text_);
  }

 private:
  void heading(const std::string& name) { text_ += format("\n{}\n", name); }
  void fact(std::string_view name, std::string_view value) {
    const std::string indent(kIndent.size() + kNameWidth, ' ');
    text_ += format("{}{:<{}}{}\n", kIndent, name, kNameWidth,
                    wrapped(value, columns_ - indent.size(), indent));
  }

  void title() {
    const Plan& plan = run_.plan;
    text_ +=
        format("{}: {} parameters, {}, {}, {}\n", run_.folder.string(),
               show_count(static_cast<double>(plan.architecture.parameter_count())),
               plan.mesh.text(), plan.deck.parallel.schedule, name_of(plan.deck.precision.type));
    for (size_t i = 0; i < columns_; ++i) text_ += "─";
    text_ += "\n";
  }

  void progress() {
    const std::vector<TrainRecord>& train = run_.metrics.train;
    if (train.empty()) {
      fact("steps", "none yet");
      return;
    }
    const auto& steps = run_.plan.deck.run.steps;
    fact("steps", steps ? format("{} of {}", show_grouped(train.back().step), show_grouped(*steps))
                        : show_grouped(train.back().step));
    std::vector<double> losses, rates;
    for (const TrainRecord& record : train) {
      losses.push_back(record.loss);
      rates.push_back(record.samples_per_second);
    }
    fact("loss", format("{:.4f} at step {}, {:.4f} at step {}", train.front().loss,
                        train.front().step, train.back().loss, train.back().step));
    fact("", spark(losses, columns_ - 20));
    const Throughput speed = throughput(train);
    fact("throughput", format("{} samples/s, {} a step (medians of the last {} steps)",
                              show_grouped(static_cast<int64_t>(speed.samples_per_second + 0.5)),
                              show_seconds(speed.step_seconds), speed.steps));
    fact("", spark(rates, columns_ - 20));
    const double flops = model_flops(run_.plan);
    fact("arithmetic",
         format("{}/s, {}/s a rank; the model's {} a step, recomputation left out",
                show_flops(flops / speed.step_seconds),
                show_flops(flops / speed.step_seconds / run_.plan.mesh.size()), show_flops(flops)));
    std::vector<std::string> shares;
    for (const ShareOf& s :
         shares_of_peak(run_, flops / speed.step_seconds / run_.plan.mesh.size()))
      shares.push_back(format("{} of {}", show_percent(s.share), s.of));
    if (!shares.empty()) fact("utilisation", join(shares, "; "));
    const auto skipped = std::count_if(train.begin(), train.end(),
                                       [](const TrainRecord& record) { return record.skipped; });
    if (skipped > 0) fact("skipped", format("{} steps: their gradient was not finite", skipped));
    for (const EvalRecord& record : run_.metrics.eval) {
      if (&record + 1 != run_.metrics.eval.data() + run_.metrics.eval.size()) continue;
      fact(
          "evaluation",
          format("step {}: loss {:.4f}, top-1 {:.2f} %, top-5 {:.2f} % of {} pictures", record.step,
                 record.loss, 100 * record.top1, 100 * record.top5, show_grouped(record.samples)));
    }
    fact("checkpoint",
         run_.checkpoint ? format("step {} in {}", run_.checkpoint_step, run_.checkpoint->string())
                         : "none yet");
  }

  void gpus() {
    const auto figures = gpu_figures(*run_.trace, run_.plan.deck.batch.global);
    if (!figures) return;
    if (!std::isnan(figures->joules_per_sample))
      fact("energy", describe_energy(*figures, run_.trace->epoch_samples));
    const auto known = [](double value, const std::string& text) {
      return std::isnan(value) ? std::string("-") : text;
    };
    const auto share = [&](double value) { return known(value, show_percent(value)); };
    const auto rate = [&](double value) { return known(value, show_bytes(value)); };
    // Only Hopper and later tell, so other tables are spared the columns.
    const bool tells = !std::isnan(figures->sm_activity);
    std::vector<std::string> head{"rank", "busy"};
    if (tells) head.insert(head.end(), {"SMs", "tensor"});
    head.insert(head.end(), {"memory", "used", "power", "clock", "hottest", "PCIe in", "out",
                             "NVLink in", "out"});
    TextTable table(std::vector<Align>(head.size(), Align::right));
    table.add(head);
    for (size_t i = 0; i < std::min(kMostRanks, figures->gpus.size()); ++i) {
      const GpuUse& gpu = figures->gpus[i];
      std::vector<std::string> row{gpu.place.substr(0, gpu.place.find(" (")),
                                   share(gpu.utilisation)};
      if (tells) row.insert(row.end(), {share(gpu.sm_activity), share(gpu.tensor_activity)});
      row.insert(row.end(), {share(gpu.memory_utilisation),
                             known(gpu.most_memory_bytes, show_bytes(gpu.most_memory_bytes)),
                             known(gpu.watts, format("{:.0f} W", gpu.watts)),
                             known(gpu.sm_clock_hz, format("{:.0f} MHz", 1e-6 * gpu.sm_clock_hz)),
                             known(gpu.hottest_celsius, format("{:.0f} C", gpu.hottest_celsius)),
                             rate(gpu.pcie_received), rate(gpu.pcie_sent),
                             rate(gpu.nvlink_received), rate(gpu.nvlink_sent)});
      table.add(row);
    }
    heading(
        "GPUs by NVML (busy: a kernel runs; memory: it is read or written; PCIe, NVLink: a "
        "second)");
    if (tells)
      text_ += format(
          "{}SMs: share of them that have work; tensor: of the time that "
          "tensor cores work\n",
          kIndent);
    text_ += table.text(kIndent);
    if (figures->gpus.size() > kMostRanks)
      text_ += format("{}and {} more\n", kIndent, figures->gpus.size() - kMostRanks);
  }

  void recorded() {
    const Analysis& a = *run_.analysis;
    heading(format("Recorded steps {} to {}: {} a step on {} rank{}", a.first_step, a.end_step - 1,
                   show_seconds(a.step_seconds), a.ranks.size(), a.ranks.size() == 1 ? "" : "s"));
    if (run_.trace->first_step() < a.first_step)
      fact("earlier", format("steps from {} on were recorded too; --perfetto exports all",
                             run_.trace->first_step()));
    if (run_.plan.mesh.pp > 1) {
      fact("bubble", format("{} measured; {} simulated with the measured times; {} by the formula "
                            "for equal chunks",
                            optional_percent(a.bubble), show_percent(a.bubble_simulated),
                            optional_percent(a.bubble_formula)));
    }
    if (run_.plan.mesh.pp > 1 || a.waits_for_updates()) {
      fact("optimizer",
           format("{} measured; {} simulated: waits for updates, which are no part of the bubble",
                  optional_percent(a.exposed_optimizer),
                  show_percent(a.exposed_optimizer_simulated)));
      if (!a.exposed_optimizer)
        fact("",
             "not measured: what the step waits for was updated in the step before it, so two "
             "steps must be recorded");
    }
    fact("accounted",
         format("{} of the wall time on the rank with the least", show_percent(a.coverage)));
    if (a.transfers > 0) {
      const std::string clock = a.skew_seconds > 0
                                    ? format("agree within {}", show_seconds(a.skew_seconds))
                                    : std::string("are one machine's");
      fact(
          "clocks",
          format("{}; {} of {} receives end before their send begins; a send is noticed at most {} "
                 "after its receive",
                 clock, a.impossible_transfers, show_grouped(a.transfers),
                 show_seconds(std::max(0.0, a.longest_notice_seconds))));
    }
  }

  void operations() {
    const Analysis& a = *run_.analysis;
    double wall = 0;
    for (const RankShare& rank : a.ranks) wall += rank.wall_seconds;
    TextTable table({Align::left, Align::right, Align::right, Align::right, Align::right,
                     Align::right, Align::right});
    table.add({"operation", "count", "mean", "longest", "of wall", "FLOPs", "bytes"});
    for (size_t i = 0; i < std::min(kMostOperations, a.operations.size()); ++i) {
      const OperationShare& o = a.operations[i];
      table.add({std::string(event_name(o.name)), show_grouped(o.count),
                 show_seconds(o.seconds / static_cast<double>(o.count)),
                 show_seconds(o.longest_seconds), show_percent(wall > 0 ? o.seconds / wall : 0),
                 o.flops > 0 && o.seconds > 0 ? show_flops(o.flops / o.seconds) + "/s" : "",
                 o.bytes > 0 && o.seconds > 0 ? show_bytes(o.bytes / o.seconds) + "/s" : ""});
    }
    heading("Operations, all ranks (a transfer's time includes waiting for its peer)");
    text_ += table.text(kIndent);
  }

  void ranks() {
    const Analysis& a = *run_.analysis;
    TextTable table(std::vector<Align>(11, Align::right));
    table.add({"rank", "compute", "pipe_in", "pipe_out", "dp", "copies", "host", "exposed dp",
               "data wait", "issue", "accounted"});
    const auto busy = [](const RankShare& rank, Lane lane) {
      return rank.busy[static_cast<size_t>(lane)];
    };
    for (size_t i = 0; i < std::min(kMostRanks, a.ranks.size()); ++i) {
      // A large job shows its first ranks and its last.
      const bool shortened = a.ranks.size() > kMostRanks && i + 1 == kMostRanks;
      const RankShare& rank = shortened ? a.ranks.back() : a.ranks[i];
      if (shortened) table.add({"..."});
      table.add(
          {rank.place.substr(0, rank.place.find(" (")), show_percent(busy(rank, Lane::compute)),
           show_percent(busy(rank, Lane::pipe_in)), show_percent(busy(rank, Lane::pipe_out)),
           show_percent(busy(rank, Lane::dp)),
           show_percent(busy(rank, Lane::input) + busy(rank, Lane::h2d) + busy(rank, Lane::d2h)),
           show_percent(busy(rank, Lane::host)), show_percent(rank.exposed_reduction),
           show_percent(rank.data_wait), show_percent(rank.issue), show_percent(rank.covered)});
    }
    heading("Ranks: share of the wall time in which a lane is busy");
    text_ += table.text(kIndent);
  }

  void advice() {
    heading("Advice");
    if (run_.advice.empty()) text_ += "  nothing stands out\n";
    for (const Advice& advice : run_.advice) {
      text_ +=
          format("  - {}{}\n", advice.title,
                 advice.gain >= 0.0005 ? format(" (up to {} of a step)", show_percent(advice.gain))
                                       : std::string());
      const std::string indent = "    ";
      text_ += format("{}{}\n", indent, wrapped(advice.evidence, columns_ - 4, indent));
      text_ += format("{}{}\n", indent,
                      wrapped(format("{} = {}", advice.key, advice.change), columns_ - 4, indent));
    }
  }

  const Run& run_;
  size_t columns_;
  std::string text_;
};

}  // namespace

std::string describe(const Run& run, int columns) { return Report(run, columns).text(); }

std::string compare(const Run& a, const Run& b) {
  TextTable table({Align::left, Align::right, Align::right, Align::right});
  table.add({"", a.name, b.name, "change"});
  const auto row = [&](const std::string& name, double x, double y, const auto& show) {
    table.add({name, show(x), show(y), x != 0 ? format("{:+.1f} %", 100 * (y - x) / x) : ""});
  };
  const auto number = [](double value) { return format("{:.4f}", value); };
  const auto loss = [](const Run& run) {
    return run.metrics.train.empty() ? 0 : run.metrics.train.back().loss;
  };
  const auto steps = [](const Run& run) {
    return run.metrics.train.empty() ? 0.0 : static_cast<double>(run.metrics.train.back().step);
  };
  const auto rate = [](const Run& run) { return throughput(run.metrics.train).samples_per_second; };
  row("steps", steps(a), steps(b),
      [](double value) { return show_grouped(static_cast<int64_t>(value)); });
  row("last loss", loss(a), loss(b), number);
  row("samples/s", rate(a), rate(b), [](double value) { return format("{:.1f}", value); });
  if (!a.metrics.eval.empty() && !b.metrics.eval.empty())
    row("test top-1", a.metrics.eval.back().top1, b.metrics.eval.back().top1, show_percent);
  if (a.analysis && b.analysis) {
    const auto both = [&](const std::string& name, double Analysis::*value, const auto& show) {
      row(name, (*a.analysis).*value, (*b.analysis).*value, show);
    };
    both("step, recorded", &Analysis::step_seconds, show_seconds);
    both("compute busy", &Analysis::compute_busy, show_percent);
    if (a.analysis->bubble && b.analysis->bubble)
      row("bubble", *a.analysis->bubble, *b.analysis->bubble, show_percent);
  }
  std::string text = "\n";
  text += table.text(kIndent);
  const std::vector<OperationShare> none;
  const auto& of_a = a.analysis ? a.analysis->operations : none;
  const auto& of_b = b.analysis ? b.analysis->operations : none;
  if (of_a.empty() || of_b.empty()) return text;
  TextTable operations({Align::left, Align::right, Align::right, Align::right});
  operations.add({"mean of", a.name, b.name, "change"});
  for (const OperationShare& x : of_a) {
    const auto y = std::find_if(of_b.begin(), of_b.end(),
                                [&](const OperationShare& o) { return o.name == x.name; });
    if (y == of_b.end()) continue;
    const double before = x.seconds / static_cast<double>(x.count);
    const double after = y->seconds / static_cast<double>(y->count);
    operations.add({std::string(event_name(x.name)), show_seconds(before), show_seconds(after),
                    before > 0 ? format("{:+.1f} %", 100 * (after - before) / before) : ""});
  }
  return text + "\n" + operations.text(kIndent);
}

}  // namespace voltapile
