#include "page_data.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "voltapile/base/units.hpp"

#include "figures.hpp"
#include "gpus.hpp"
#include "page_trace.hpp"

namespace voltapile {
namespace {

using Json = nlohmann::json;

// More points than a screen has columns only make the page large.
constexpr size_t kMostPoints = 2000;

// JSON has no infinity; the script skips null.
Json number(double value) {
  if (!std::isfinite(value)) return nullptr;
  // Six digits are more than a pixel.
  if (value == 0) return 0;
  const double scale = std::pow(10.0, 5 - std::floor(std::log10(std::abs(value))));
  return std::isfinite(scale) ? Json(std::round(value * scale) / scale) : Json(value);
}

// Mean of each run of records; the last step of a run stands for it.
Json metrics_of(const std::vector<TrainRecord>& train) {
  struct Column {
    const char* name;
    double (*get)(const TrainRecord&);
  };
  static constexpr Column kColumns[] = {
      {"loss", [](const TrainRecord& r) { return r.loss; }},
      {"samples_per_second", [](const TrainRecord& r) { return r.samples_per_second; }},
      {"learning_rate", [](const TrainRecord& r) { return r.learning_rate; }},
      {"grad_norm", [](const TrainRecord& r) { return r.grad_norm; }},
      {"loss_scale", [](const TrainRecord& r) { return r.loss_scale; }},
  };
  Json metrics{{"step", Json::array()}};
  const size_t points = std::min(train.size(), kMostPoints);
  const auto begin_of = [&](size_t point) { return point * train.size() / points; };
  for (size_t point = 0; point < points; ++point)
    metrics["step"].push_back(train[begin_of(point + 1) - 1].step);
  for (const Column& column : kColumns) {
    Json values = Json::array();
    for (size_t point = 0; point < points; ++point) {
      double sum = 0;
      for (size_t i = begin_of(point); i < begin_of(point + 1); ++i) sum += column.get(train[i]);
      values.push_back(number(sum / static_cast<double>(begin_of(point + 1) - begin_of(point))));
    }
    metrics[column.name] = std::move(values);
  }
  return metrics;
}

Json evaluations_of(const std::vector<EvalRecord>& eval) {
  Json json{{"step", Json::array()},
            {"loss", Json::array()},
            {"top1", Json::array()},
            {"top5", Json::array()}};
  for (const EvalRecord& record : eval) {
    json["step"].push_back(record.step);
    json["loss"].push_back(number(record.loss));
    json["top1"].push_back(number(100 * record.top1));
    json["top5"].push_back(number(100 * record.top5));
  }
  return json;
}

Json facts_for_page(const Run& run) {
  const Plan& plan = run.plan;
  Json facts = Json::array();
  const auto fact = [&](const char* name, const std::string& value) {
    facts.push_back({name, value});
  };
  const auto& train = run.metrics.train;
  fact("parameters", show_count(static_cast<double>(plan.architecture.parameter_count())));
  fact("mesh", plan.mesh.text());
  fact("schedule", plan.deck.parallel.schedule);
  if (!train.empty()) {
    fact("steps", show_grouped(train.back().step) +
                      (plan.deck.run.steps ? " of " + show_grouped(*plan.deck.run.steps) : ""));
    fact("loss", format("{:.4f}", train.back().loss));
    const Throughput speed = throughput(train);
    fact("samples/s", format("{:.1f}", speed.samples_per_second));
    const double each = model_flops(plan) / speed.step_seconds / plan.mesh.size();
    fact("a rank", show_flops(each) + "/s");
    for (const ShareOf& s : shares_of_peak(run, each))
      facts.push_back({"of " + s.of, show_percent(s.share)});
  }
  if (!run.metrics.eval.empty()) fact("test top-1", show_percent(run.metrics.eval.back().top1));
  if (const auto gpus =
          run.trace ? gpu_figures(*run.trace, plan.deck.batch.global) : std::nullopt) {
    if (!std::isnan(gpus->joules_per_sample)) {
      fact("samples/kWh", show_count(samples_per_kwh(*gpus)));
      if (run.trace->epoch_samples > 0)
        fact("kWh an epoch", format("{:.3g}", epoch_kwh(*gpus, run.trace->epoch_samples)));
      fact("W, all GPUs", format("{:.0f}", gpus->watts));
    }
  }
  fact("checkpoint", run.checkpoint ? format("step {}", run.checkpoint_step) : std::string("none"));
  return facts;
}

Json analysis_of(const Analysis& a, bool pipelined) {
  Json facts = Json::array();
  const auto fact = [&](const char* name, const std::string& value, const char* hint) {
    facts.push_back({name, value, hint});
  };
  fact("step", show_seconds(a.step_seconds), "wall time of a recorded step");
  fact("compute busy", show_percent(a.compute_busy), "share of the wall time, mean over ranks");
  if (pipelined) {
    fact("bubble", optional_percent(a.bubble),
         "measured: nothing is computed between a step's first forward and last backward, and no "
         "weights are waited for");
    fact("bubble, simulated", show_percent(a.bubble_simulated), "with measured times");
    if (a.bubble_formula)
      fact("formula", show_percent(*a.bubble_formula), "bubble by formula for equal chunks");
  }
  if (pipelined || a.waits_for_updates()) {
    fact("exposed optimizer", optional_percent(a.exposed_optimizer),
         "measured: updates are waited for");
    fact("exposed optimizer, simulated", show_percent(a.exposed_optimizer_simulated),
         "with measured times");
  }
  double exposed = 0, data_wait = 0;
  for (const RankShare& rank : a.ranks) {
    exposed += rank.exposed_reduction / static_cast<double>(a.ranks.size());
    data_wait += rank.data_wait / static_cast<double>(a.ranks.size());
  }
  fact("exposed reduction", show_percent(exposed), "gradients travel while nothing is computed");
  fact("data wait", show_percent(data_wait), "the loader's batch is waited for");
  fact("accounted", show_percent(a.coverage), "share of wall time that the trace explains");
  return facts;
}

Json operations_for_page(const Analysis& a) {
  double wall = 0;
  for (const RankShare& rank : a.ranks) wall += rank.wall_seconds;
  Json rows = Json::array();
  for (const OperationShare& o : a.operations) {
    if (o.name == static_cast<int32_t>(HostWork::step_wait)) continue;
    rows.push_back({std::string(event_name(o.name)), o.count,
                    show_seconds(o.seconds / static_cast<double>(o.count)),
                    show_seconds(o.longest_seconds), number(wall > 0 ? o.seconds / wall : 0),
                    o.flops > 0 && o.seconds > 0 ? show_flops(o.flops / o.seconds) + "/s" : "",
                    o.bytes > 0 && o.seconds > 0 ? show_bytes(o.bytes / o.seconds) + "/s" : ""});
  }
  return rows;
}

Json advice_of(const std::vector<Advice>& advice) {
  Json rows = Json::array();
  for (const Advice& a : advice)
    rows.push_back({{"title", a.title},
                    {"evidence", a.evidence},
                    {"key", a.key},
                    {"change", a.change},
                    {"gain", a.gain >= 0.0005 ? show_percent(a.gain) : ""}});
  return rows;
}

}  // namespace

Json page_data(const Run& run) {
  Json data{{"name", run.name},
            {"facts", facts_for_page(run)},
            {"metrics", metrics_of(run.metrics.train)},
            {"eval", evaluations_of(run.metrics.eval)},
            {"advice", advice_of(run.advice)}};
  if (run.trace) data["gpus"] = gpus_data(*run.trace);
  if (!run.analysis) return data;
  data["analysis"] = analysis_of(*run.analysis, run.plan.mesh.pp > 1);
  data["operations"] = operations_for_page(*run.analysis);
  data["trace"] = lanes_data(*run.window, run.plan);
  data["heat"] = heat_data(*run.window, run.plan);
  data["memory"] = memory_data(*run.window);
  data["samples"] = samples_data(*run.window);
  return data;
}

Json comparison_data(const Run& a, const Run& b) {
  Json rows = Json::array();
  const auto row = [&](const char* name, double x, double y, const auto& show) {
    rows.push_back(
        {name, show(x), show(y), x != 0 ? format("{:+.1f} %", 100 * (y - x) / x) : std::string()});
  };
  const auto loss = [](const Run& run) {
    return run.metrics.train.empty() ? 0.0 : run.metrics.train.back().loss;
  };
  row("last loss", loss(a), loss(b), [](double value) { return format("{:.4f}", value); });
  row("samples/s", throughput(a.metrics.train).samples_per_second,
      throughput(b.metrics.train).samples_per_second,
      [](double value) { return format("{:.1f}", value); });
  if (!a.metrics.eval.empty() && !b.metrics.eval.empty())
    row("test top-1", a.metrics.eval.back().top1, b.metrics.eval.back().top1, show_percent);
  if (!a.analysis || !b.analysis) return rows;
  row("step, recorded", a.analysis->step_seconds, b.analysis->step_seconds, show_seconds);
  row("compute busy", a.analysis->compute_busy, b.analysis->compute_busy, show_percent);
  if (a.analysis->bubble && b.analysis->bubble)
    row("bubble", *a.analysis->bubble, *b.analysis->bubble, show_percent);
  for (const OperationShare& x : a.analysis->operations)
    for (const OperationShare& y : b.analysis->operations)
      if (x.name == y.name)
        row(std::string(event_name(x.name)).c_str(), x.seconds / static_cast<double>(x.count),
            y.seconds / static_cast<double>(y.count), show_seconds);
  return rows;
}

}  // namespace voltapile
