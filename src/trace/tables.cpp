#include "tables.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace voltapile {
namespace {

// Names of the file to this version's; -1 where it has none.
std::vector<int32_t> known_names(const std::vector<std::string>& names) {
  std::vector<int32_t> known(names.size(), -1);
  for (size_t i = 0; i < names.size(); ++i)
    for (int32_t name = 0; name < kEventNames; ++name)
      if (event_name(name) == names[i]) known[i] = name;
  return known;
}

}  // namespace

std::vector<h5::Field> name_fields() { return {{.name = "name", .text_bytes = sizeof(NameRow)}}; }

std::vector<h5::Field> event_fields() {
  using E = TraceEvent;
  return {{"name", DType::i32, 0, offsetof(E, name)},
          {"lane", DType::i32, 0, offsetof(E, lane)},
          {"step", DType::i64, 0, offsetof(E, step)},
          {"chunk", DType::i32, 0, offsetof(E, chunk)},
          {"micro", DType::i32, 0, offsetof(E, micro)},
          {"begin_ns", DType::i64, 0, offsetof(E, begin_ns)},
          {"end_ns", DType::i64, 0, offsetof(E, end_ns)},
          {"bytes", DType::i64, 0, offsetof(E, bytes)},
          {"flops", DType::f64, 0, offsetof(E, flops)}};
}

std::vector<h5::Field> memory_fields() {
  using M = MemoryFileRow;
  return {{"time_ns", DType::i64, 0, offsetof(M, time_ns)},
          {"name", DType::i32, 0, offsetof(M, name)},
          {"bytes", DType::i64, 0, offsetof(M, bytes)},
          {"on_host", DType::i32, 0, offsetof(M, on_host)}};
}

std::vector<h5::Field> sample_fields() {
  using S = HostSample;
  return {{"rank", DType::i64, 0, offsetof(S, rank)},
          {"step", DType::i64, 0, offsetof(S, step)},
          {"time_ns", DType::i64, 0, offsetof(S, time_ns)},
          {"resident_bytes", DType::i64, 0, offsetof(S, resident_bytes)},
          {"cpu_seconds", DType::f64, 0, offsetof(S, cpu_seconds)},
          {"read_bytes", DType::i64, 0, offsetof(S, read_bytes)},
          {"written_bytes", DType::i64, 0, offsetof(S, written_bytes)},
          {"received_bytes", DType::i64, 0, offsetof(S, received_bytes)},
          {"sent_bytes", DType::i64, 0, offsetof(S, sent_bytes)}};
}

std::vector<h5::Field> gpu_sample_fields() {
  using S = GpuSample;
  const auto number = [](const char* name, size_t offset) {
    return h5::Field{name, DType::f64, 0, offset};
  };
  // Files of the first versions lack it.
  const auto later = [](const char* name, size_t offset) {
    return h5::Field{name, DType::f64, 0, offset, true};
  };
  return {{"rank", DType::i64, 0, offsetof(S, rank)},
          {"step", DType::i64, 0, offsetof(S, step)},
          {"time_ns", DType::i64, 0, offsetof(S, time_ns)},
          number("utilisation", offsetof(S, utilisation)),
          number("memory_utilisation", offsetof(S, memory_utilisation)),
          later("sm_activity", offsetof(S, sm_activity)),
          later("tensor_activity", offsetof(S, tensor_activity)),
          later("sm_occupancy", offsetof(S, sm_occupancy)),
          later("memory_bandwidth_utilisation", offsetof(S, memory_bandwidth_utilisation)),
          number("memory_bytes", offsetof(S, memory_bytes)),
          number("power_watts", offsetof(S, power_watts)),
          number("sm_clock_hz", offsetof(S, sm_clock_hz)),
          number("memory_clock_hz", offsetof(S, memory_clock_hz)),
          number("temperature_celsius", offsetof(S, temperature_celsius)),
          number("pcie_received_bytes_per_second", offsetof(S, pcie_received_bytes_per_second)),
          number("pcie_sent_bytes_per_second", offsetof(S, pcie_sent_bytes_per_second)),
          number("nvlink_received_bytes", offsetof(S, nvlink_received_bytes)),
          number("nvlink_sent_bytes", offsetof(S, nvlink_sent_bytes)),
          number("energy_joules", offsetof(S, energy_joules))};
}

std::vector<std::string> read_names(const h5::Group& file, const std::string& table) {
  std::vector<std::string> names;
  for (const NameRow& row : read_rows<NameRow>(file, table, name_fields()))
    names.emplace_back(row.text, strnlen(row.text, sizeof row.text));
  return names;
}

void write_names(h5::Group& file, const std::string& table, const std::vector<std::string>& names) {
  std::vector<NameRow> rows(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    std::memset(rows[i].text, 0, sizeof rows[i].text);
    names[i].copy(rows[i].text, sizeof rows[i].text - 1);
  }
  write_rows(file, table, name_fields(), rows);
}

std::string rank_group(size_t rank) { return format("rank_{:05}", rank); }

Mesh read_mesh(const h5::File& file) {
  const int64_t version = file.int_attribute("format_version");
  if (version != kTraceVersion) {
    throw Error(ExitCode::bad_data,
                format("{}: format_version {}, but this program reads version {}; use the program "
                       "that wrote it",
                       file.where(), version, kTraceVersion));
  }
  const auto axis = [&](const char* name) {
    const int64_t size = file.int_attribute(name);
    if (size < 1 || size > 1'000'000)
      throw Error(ExitCode::bad_data, format("{}: {} = {}", file.where(), name, size));
    return static_cast<int>(size);
  };
  return {axis("pipeline"), axis("data"), axis("tensor")};
}

RankRecord read_rank(const h5::File& file, size_t rank, const std::vector<std::string>& names) {
  const h5::Group group = file.open_group(rank_group(rank));
  RankRecord record;
  record.place = group.text_attribute("place");
  record.host = group.text_attribute("host");
  if (group.has_attribute("device")) record.device = group.text_attribute("device");
  record.clock_skew_ns = group.int_attribute("clock_skew_ns");
  const auto name_in_file = [&](int32_t name) -> size_t {
    if (0 <= name && name < static_cast<int32_t>(names.size())) return static_cast<size_t>(name);
    throw Error(ExitCode::bad_data, format("{}: name {} of {}", group.where(), name, names.size()));
  };
  const std::vector<int32_t> known = known_names(names);
  for (TraceEvent event : read_rows<TraceEvent>(group, "events", event_fields())) {
    event.name = known[name_in_file(event.name)];
    if (event.name >= 0 && event.lane >= 0 && event.lane < kEventLanes)
      record.events.push_back(event);
  }
  for (const MemoryFileRow& row : read_rows<MemoryFileRow>(group, "memory", memory_fields()))
    record.memory.push_back({row.time_ns, names[name_in_file(row.name)], row.bytes, row.on_host});
  return record;
}

std::vector<HostSample> read_samples(const h5::File& file) {
  return read_rows<HostSample>(file, "samples", sample_fields());
}

std::vector<GpuSample> read_gpu_samples(const h5::File& file) {
  if (!file.exists("gpu_samples")) return {};
  return read_rows<GpuSample>(file, "gpu_samples", gpu_sample_fields());
}

}  // namespace voltapile
