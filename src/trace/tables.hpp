// Private to trace: the tables of trace.h5, as rows in memory.
#pragma once
#include <vector>

#include "voltapile/h5/h5.hpp"
#include "voltapile/trace/trace_file.hpp"

namespace voltapile {

struct NameRow {
  char text[64];
};
struct MemoryFileRow {
  int64_t time_ns, bytes;
  int32_t name, on_host;
};

std::vector<h5::Field> name_fields();
std::vector<h5::Field> event_fields();
std::vector<h5::Field> memory_fields();
std::vector<h5::Field> sample_fields();
std::vector<h5::Field> gpu_sample_fields();

template <class Row>
std::vector<Row> read_rows(const h5::Group& group, const std::string& name,
                           const std::vector<h5::Field>& fields) {
  std::vector<Row> rows(static_cast<size_t>(group.table_rows(name)));
  group.read_table(name, fields, sizeof(Row), rows.data());
  return rows;
}
template <class Row>
void write_rows(h5::Group& group, const std::string& name, const std::vector<h5::Field>& fields,
                const std::vector<Row>& rows) {
  group.write_table(name, fields, sizeof(Row), rows.data(), static_cast<int64_t>(rows.size()));
}

std::vector<std::string> read_names(const h5::Group& file, const std::string& table);
void write_names(h5::Group& file, const std::string& table, const std::vector<std::string>& names);
std::string rank_group(size_t rank);   // "rank_00000"
Mesh read_mesh(const h5::File& file);  // Error(bad_data) when the format is a later one
RankRecord read_rank(const h5::File& file, size_t rank, const std::vector<std::string>& names);
// Of every rank, in the order of the file.
std::vector<HostSample> read_samples(const h5::File& file);
std::vector<GpuSample> read_gpu_samples(const h5::File& file);  // none in an earlier file

}  // namespace voltapile
