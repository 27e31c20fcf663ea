#include "voltapile/trace/trace_file.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "voltapile/base/version.hpp"

#include "tables.hpp"

namespace voltapile {

int64_t Trace::first_step() const {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const RankRecord& rank : ranks)
    for (const TraceEvent& event : rank.events) first = std::min(first, event.step);
  return first == std::numeric_limits<int64_t>::max() ? 0 : first;
}

int64_t Trace::end_step() const {
  int64_t end = 0;
  for (const RankRecord& rank : ranks)
    for (const TraceEvent& event : rank.events) end = std::max(end, event.step + 1);
  return end;
}

Trace Trace::last_window() const {
  std::set<int64_t> steps;
  for (const RankRecord& rank : ranks)
    for (const TraceEvent& event : rank.events) steps.insert(event.step);
  int64_t first = end_step() - 1;
  while (steps.contains(first - 1)) --first;
  Trace window = *this;
  for (RankRecord& rank : window.ranks) {
    std::erase_if(rank.events, [&](const TraceEvent& event) { return event.step < first; });
    std::erase_if(rank.samples, [&](const HostSample& sample) { return sample.step < first; });
  }
  return window;
}

Trace read_trace(const std::filesystem::path& path) {
  const h5::File file = h5::File::open(path);
  Trace trace;
  trace.mesh = read_mesh(file);
  trace.deck = file.text_attribute("deck");
  const std::vector<std::string> names = read_names(file, "names");
  for (size_t rank = 0; rank < static_cast<size_t>(trace.mesh.size()); ++rank)
    trace.ranks.push_back(read_rank(file, rank, names));
  for (const HostSample& sample : read_samples(file)) {
    if (sample.rank >= 0 && sample.rank < trace.mesh.size())
      trace.ranks[static_cast<size_t>(sample.rank)].samples.push_back(sample);
  }
  for (const GpuSample& sample : read_gpu_samples(file)) {
    if (sample.rank >= 0 && sample.rank < trace.mesh.size())
      trace.ranks[static_cast<size_t>(sample.rank)].gpu_samples.push_back(sample);
  }
  if (file.has_attribute("epoch_samples"))
    trace.epoch_samples = file.int_attribute("epoch_samples");
  return trace;
}

struct TraceWriter::Impl {
  h5::File file;
  std::optional<h5::File> earlier;
  Mesh mesh;
  std::vector<std::string> names, earlier_names;
  std::vector<HostSample> samples, earlier_samples;
  std::vector<GpuSample> gpu_samples, earlier_gpu_samples;
  size_t added = 0;

  Impl(const std::filesystem::path& aside, const std::filesystem::path& earlier_path,
       const Mesh& mesh_, const std::string& deck, int64_t epoch_samples)
      : file(h5::File::create(aside)), mesh(mesh_) {
    file.set_attribute("format_version", kTraceVersion);
    file.set_attribute("version", std::string_view(kVersion));
    file.set_attribute("deck", std::string_view(deck));
    file.set_attribute("pipeline", int64_t{mesh.pp});
    file.set_attribute("data", int64_t{mesh.dp});
    file.set_attribute("tensor", int64_t{mesh.tp});
    file.set_attribute("epoch_samples", epoch_samples);
    for (int32_t name = 0; name < kEventNames; ++name) names.emplace_back(event_name(name));
    if (!std::filesystem::exists(earlier_path)) return;
    earlier.emplace(h5::File::open(earlier_path));
    if (!(read_mesh(*earlier) == mesh)) {
      earlier.reset();
      return;
    }
    earlier_names = read_names(*earlier, "names");
    earlier_samples = read_samples(*earlier);
    earlier_gpu_samples = read_gpu_samples(*earlier);
  }

  int32_t id_of(const std::string& name) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) {
      names.push_back(name);
      return static_cast<int32_t>(names.size() - 1);
    }
    return static_cast<int32_t>(at - names.begin());
  }

  void add(RankRecord record) {
    const size_t rank = added++;
    std::set<int64_t> anew;
    for (const TraceEvent& event : record.events) anew.insert(event.step);
    std::vector<TraceEvent> events;
    std::vector<MemoryRow> memory;
    const auto keep = [&](int64_t step) { return !anew.contains(step); };
    if (earlier) {
      RankRecord before = read_rank(*earlier, rank, earlier_names);
      for (const TraceEvent& event : before.events)
        if (keep(event.step)) events.push_back(event);
      memory = std::move(before.memory);
      for (const HostSample& sample : earlier_samples)
        if (sample.rank == static_cast<int64_t>(rank) && keep(sample.step))
          samples.push_back(sample);
      for (const GpuSample& sample : earlier_gpu_samples)
        if (sample.rank == static_cast<int64_t>(rank)) gpu_samples.push_back(sample);
      record.clock_skew_ns = std::max(record.clock_skew_ns, before.clock_skew_ns);
    }
    events.insert(events.end(), record.events.begin(), record.events.end());
    memory.insert(memory.end(), record.memory.begin(), record.memory.end());
    samples.insert(samples.end(), record.samples.begin(), record.samples.end());
    gpu_samples.insert(gpu_samples.end(), record.gpu_samples.begin(), record.gpu_samples.end());

    h5::Group group = file.create_group(rank_group(rank));
    group.set_attribute("place", std::string_view(record.place));
    group.set_attribute("host", std::string_view(record.host));
    group.set_attribute("device", std::string_view(record.device));
    group.set_attribute("clock_skew_ns", record.clock_skew_ns);
    write_rows(group, "events", event_fields(), events);
    std::vector<MemoryFileRow> rows;
    for (const MemoryRow& row : memory)
      rows.push_back({row.time_ns, row.bytes, id_of(row.name), row.on_host});
    write_rows(group, "memory", memory_fields(), rows);
  }

  void finish() {
    VP_CHECK(added == static_cast<size_t>(mesh.size()), "a trace of {} of {} ranks", added,
             mesh.size());
    write_names(file, "names", names);
    std::vector<std::string> lanes;
    for (int32_t lane = 0; lane < kEventLanes; ++lane) lanes.emplace_back(event_lane(lane));
    write_names(file, "lanes", lanes);
    write_rows(file, "samples", sample_fields(), samples);
    write_rows(file, "gpu_samples", gpu_sample_fields(), gpu_samples);
    file.close();
  }
};

TraceWriter::TraceWriter(const std::filesystem::path& aside, const std::filesystem::path& earlier,
                         const Mesh& mesh, const std::string& deck, int64_t epoch_samples)
    : impl_(std::make_unique<Impl>(aside, earlier, mesh, deck, epoch_samples)) {}
TraceWriter::~TraceWriter() = default;

void TraceWriter::add(const RankRecord& record) { impl_->add(record); }
void TraceWriter::finish() { impl_->finish(); }

}  // namespace voltapile
