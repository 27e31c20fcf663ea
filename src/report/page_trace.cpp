#include "page_trace.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "voltapile/plan/costs.hpp"

namespace voltapile {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostLanes = 64;
constexpr size_t kMostGpuPoints = 500;

int64_t begin_of(const Trace& trace) {
  int64_t begin = std::numeric_limits<int64_t>::max();
  for (const RankRecord& rank : trace.ranks)
    for (const TraceEvent& event : rank.events) begin = std::min(begin, event.begin_ns);
  return begin;
}

std::string layer_name(const Layer& layer) {
  if (layer.kind == LayerKind::embedding) return "embedding";
  return layer.kind == LayerKind::head ? "head" : format("block {}", layer.block);
}

std::string short_place(const RankRecord& rank) {
  return rank.place.substr(0, rank.place.find(" ("));
}

// The end of the steps, and the number of ranks, whose events a page can hold: all ranks of the
// first steps, or, where not even one step of all fits, the first ranks of the first step.
struct Drawn {
  int64_t end_step;
  size_t ranks;
};
Drawn what_to_draw(const Trace& trace) {
  std::map<int64_t, size_t> events_of;
  for (const RankRecord& rank : trace.ranks)
    for (const TraceEvent& event : rank.events) ++events_of[event.step];
  size_t events = 0;
  int64_t end_step = trace.first_step();
  for (const auto& [step, count] : events_of) {
    events += count;
    if (events > kMostDrawn) break;
    end_step = step + 1;
  }
  if (end_step > trace.first_step()) return {end_step, trace.ranks.size()};
  const size_t each = std::max<size_t>(1, events / trace.ranks.size());
  return {end_step + 1, std::clamp<size_t>(kMostDrawn / each, 1, trace.ranks.size())};
}

}  // namespace

Json lanes_data(const Trace& trace, const Plan& plan) {
  using Kind = std::tuple<int32_t, int32_t, int32_t, int32_t>;  // name, lane, chunk, micro
  std::map<Kind, size_t> numbers;
  Json kinds = Json::array(), ranks = Json::array();
  const int64_t begin = begin_of(trace);
  const auto tenths = [](int64_t ns) { return (ns + 50) / 100; };
  const auto [end_step, drawn] = what_to_draw(trace);
  for (size_t number = 0; number < drawn; ++number) {
    const RankRecord& rank = trace.ranks[number];
    std::map<int64_t, std::vector<const TraceEvent*>> steps;
    for (const TraceEvent& event : rank.events)
      if (event.step < end_step) steps[event.step].push_back(&event);
    Json step_rows = Json::array();
    int64_t before = 0;
    for (auto& [step, list] : steps) {
      std::stable_sort(list.begin(), list.end(), [](const TraceEvent* a, const TraceEvent* b) {
        return a->begin_ns < b->begin_ns;
      });
      Json row = Json::array({step});
      for (const TraceEvent* e : list) {
        const auto [at, added] =
            numbers.try_emplace({e->name, e->lane, e->chunk, e->micro}, numbers.size());
        if (added) kinds.push_back({e->name, e->lane, e->chunk, e->micro, e->bytes, e->flops});
        const int64_t time = tenths(e->begin_ns - begin);
        row.push_back(at->second);
        row.push_back(time - before);
        row.push_back(tenths(e->end_ns - e->begin_ns));
        before = time;
      }
      step_rows.push_back(std::move(row));
    }
    ranks.push_back({{"place", rank.place}, {"host", rank.host}, {"steps", std::move(step_rows)}});
  }
  Json names = Json::array(), lanes = Json::array(), saved = Json::array();
  for (int32_t name = 0; name < kEventNames; ++name) names.push_back(std::string(event_name(name)));
  for (int32_t lane = 0; lane < kEventLanes; ++lane) lanes.push_back(std::string(event_lane(lane)));
  for (int chunk = 0; chunk < static_cast<int>(plan.chunks.size()); ++chunk)
    saved.push_back(value_bytes(plan, plan.train, Value::saved, chunk));
  return {{"names", names},
          {"lanes", lanes},
          {"kinds", kinds},
          {"ranks", ranks},
          {"saved", saved},
          {"drawn", drawn},
          {"of", trace.ranks.size()},
          {"last_step", end_step - 1},
          {"last_of", trace.end_step() - 1}};
}

Json heat_data(const Trace& trace, const Plan& plan) {
  const size_t ranks = std::min(kMostLanes, trace.ranks.size());
  const size_t layers = plan.architecture.layers.size();
  const double steps = static_cast<double>(trace.end_step() - trace.first_step());
  std::vector<std::vector<double>> seconds(layers, std::vector<double>(ranks, 0)), bytes = seconds;
  std::vector<double> layer_flops(layers, 0), layer_parameters(layers, 0);
  for (size_t l = 0; l < layers; ++l) {
    const Layer& layer = plan.architecture.layers[l];
    const Flops f = flops(plan.architecture, layer, plan.train.sizes.micro);
    layer_flops[l] = f.forward + f.backward_input + f.backward_weight;
    for (const Parameter& p : layer.parameters)
      layer_parameters[l] += static_cast<double>(p.shape.elements());
  }
  for (size_t rank = 0; rank < ranks; ++rank)
    for (const TraceEvent& event : trace.ranks[rank].events) {
      if (event.chunk < 0 || event.name >= kOpCount) continue;
      const Chunk& chunk = plan.chunks[static_cast<size_t>(event.chunk)];
      double all_flops = 0, all_parameters = 0;
      for (auto l = static_cast<size_t>(chunk.first_layer);
           l < static_cast<size_t>(chunk.end_layer); ++l) {
        all_flops += layer_flops[l];
        all_parameters += layer_parameters[l];
      }
      for (auto l = static_cast<size_t>(chunk.first_layer);
           l < static_cast<size_t>(chunk.end_layer); ++l) {
        if (event.flops > 0)
          seconds[l][rank] += 1e-9 * static_cast<double>(event.end_ns - event.begin_ns) *
                              layer_flops[l] / all_flops / steps;
        bytes[l][rank] +=
            static_cast<double>(event.bytes) * layer_parameters[l] / all_parameters / steps;
      }
    }
  const auto rounded = [](std::vector<std::vector<double>> rows, double unit) {
    for (auto& row : rows)
      for (double& value : row) value = std::round(value / unit) * unit;
    return rows;
  };
  Json names = Json::array(), places = Json::array();
  for (const Layer& layer : plan.architecture.layers) names.push_back(layer_name(layer));
  for (size_t rank = 0; rank < ranks; ++rank) places.push_back(short_place(trace.ranks[rank]));
  return {{"layers", names},
          {"ranks", places},
          {"seconds", rounded(seconds, 1e-7)},
          {"bytes", rounded(bytes, 1)}};
}

Json memory_data(const Trace& trace) {
  Json result = Json::array();
  const auto each = static_cast<size_t>(trace.mesh.dp * trace.mesh.tp);
  for (size_t rank = 0; rank < trace.ranks.size() && result.size() < kMostLanes; rank += each) {
    const RankRecord& record = trace.ranks[rank];
    int64_t last = 0;
    for (const MemoryRow& row : record.memory) last = std::max(last, row.time_ns);
    Json rows = Json::array();
    for (const MemoryRow& row : record.memory)
      if (row.time_ns == last) rows.push_back({row.name, row.bytes, row.on_host});
    result.push_back({{"place", record.place}, {"rows", std::move(rows)}});
  }
  return result;
}

Json samples_data(const Trace& trace) {
  Json result = Json::array();
  const int64_t begin = begin_of(trace);
  for (size_t rank = 0; rank < std::min(kMostLanes, trace.ranks.size()); ++rank) {
    Json seconds = Json::array(), resident = Json::array();
    for (const HostSample& sample : trace.ranks[rank].samples) {
      seconds.push_back(1e-3 * static_cast<double>((sample.time_ns - begin) / 1'000'000));
      resident.push_back(sample.resident_bytes);
    }
    result.push_back(
        {{"place", short_place(trace.ranks[rank])}, {"seconds", seconds}, {"resident", resident}});
  }
  return result;
}

Json gpus_data(const Trace& trace) {
  Json result = Json::array();
  int64_t begin = std::numeric_limits<int64_t>::max();
  for (const RankRecord& rank : trace.ranks)
    for (const GpuSample& sample : rank.gpu_samples) begin = std::min(begin, sample.time_ns);
  for (const RankRecord& rank : trace.ranks) {
    if (rank.gpu_samples.empty() || result.size() == kMostLanes) continue;
    Json seconds = Json::array();
    std::array<std::pair<const char*, double GpuSample::*>, 9> columns{
        {{"busy", &GpuSample::utilisation},
         {"sms", &GpuSample::sm_activity},
         {"tensor", &GpuSample::tensor_activity},
         {"occupancy", &GpuSample::sm_occupancy},
         {"bandwidth", &GpuSample::memory_bandwidth_utilisation},
         {"memory", &GpuSample::memory_bytes},
         {"watts", &GpuSample::power_watts},
         {"celsius", &GpuSample::temperature_celsius},
         {"sm_clock", &GpuSample::sm_clock_hz}}};
    Json row{{"place", short_place(rank)}};
    const size_t stride = 1 + rank.gpu_samples.size() / kMostGpuPoints;
    for (size_t i = 0; i < rank.gpu_samples.size(); i += stride) {
      const GpuSample& sample = rank.gpu_samples[i];
      seconds.push_back(1e-3 * static_cast<double>((sample.time_ns - begin) / 1'000'000));
      for (const auto& [name, value] : columns)
        row[name].push_back(std::isnan(sample.*value) ? Json(nullptr) : Json(sample.*value));
    }
    row["seconds"] = std::move(seconds);
    result.push_back(std::move(row));
  }
  return result;
}

}  // namespace voltapile
