#include "voltapile/trace/trace_file.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "voltapile/base/error.hpp"
#include "voltapile/h5/h5.hpp"

#include "tables.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

class TraceFile : public ::testing::Test {
 protected:
  TraceFile() { fs::create_directories(folder_); }
  ~TraceFile() override { fs::remove_all(folder_); }

  void write(const Mesh& mesh, const std::vector<RankRecord>& records) {
    TraceWriter writer(folder_ / "aside", path_, mesh, "deck text", 60'000);
    for (const RankRecord& record : records) writer.add(record);
    writer.finish();
    fs::rename(folder_ / "aside", path_);
  }

  fs::path folder_ = fs::temp_directory_path() / format("voltapile_trace_{}", getpid());
  fs::path path_ = folder_ / "trace.h5";
};

// Different numbers everywhere, so that a swapped column shows.
RankRecord record_of(int rank, int64_t first_step, int64_t end_step, int64_t shift = 0) {
  RankRecord record{.place = format("rank {} (pp{} dp0 tp0)", rank, rank),
                    .host = format("node{}", rank),
                    .device = format("cuda, GPU of {}", rank),
                    .clock_skew_ns = 10 + rank};
  for (int64_t step = first_step; step < end_step; ++step) {
    for (int32_t name = 0; name < kEventNames; ++name) {
      const int64_t begin = 1'790'000'000'000'000'000 + 1000 * step + name + shift;
      record.events.push_back({name, name % kEventLanes, name + 1, name + 2, step, begin, begin + 5,
                               7 * step, 2.5e15 * static_cast<double>(step)});
    }
    record.samples.push_back({rank, step, 3 * step, 4 * step, 0.5 * static_cast<double>(step),
                              6 * step, 7 * step, 8 * step, 9 * step});
  }
  for (int64_t at = first_step; at < first_step + 3; ++at) {
    const auto x = static_cast<double>(at);
    record.gpu_samples.push_back({rank, at, 5 * at, x + .01, x + .02, x + .03, x + .04, x + .05,
                                  x + .06, x + .07, x + .08, x + .09, x + .10, x + .11, x + .12,
                                  x + .13, x + .14, x + .15, x + .16});
    record.gpu_samples.back().power_watts = GpuSample::kUnknown;
  }
  record.memory.push_back({first_step, format("weights of {}", rank), 1234 + rank, rank % 2});
  return record;
}

TEST_F(TraceFile, GivesBackWhatWasWritten) {
  const std::vector<RankRecord> records{record_of(0, 5, 7), record_of(1, 5, 7)};
  write({2, 1, 1}, records);
  const Trace trace = read_trace(path_);
  EXPECT_EQ(trace.mesh, (Mesh{2, 1, 1}));
  EXPECT_EQ(trace.deck, "deck text");
  EXPECT_EQ(trace.epoch_samples, 60'000);
  EXPECT_EQ(trace.ranks, records);
  EXPECT_EQ(trace.first_step(), 5);
  EXPECT_EQ(trace.end_step(), 7);
}

TEST_F(TraceFile, KeepsEarlierWindowsAndReplacesStepsThatAreRecordedAnew) {
  write({1, 1, 1}, {record_of(0, 5, 8)});
  write({1, 1, 1}, {record_of(0, 7, 9, 100)});
  const Trace trace = read_trace(path_);
  RankRecord expected = record_of(0, 5, 7);
  const RankRecord later = record_of(0, 7, 9, 100);
  expected.events.insert(expected.events.end(), later.events.begin(), later.events.end());
  expected.samples.insert(expected.samples.end(), later.samples.begin(), later.samples.end());
  expected.memory.insert(expected.memory.end(), later.memory.begin(), later.memory.end());
  EXPECT_EQ(trace.ranks.front().events, expected.events);
  EXPECT_EQ(trace.ranks.front().samples, expected.samples);
  EXPECT_EQ(trace.ranks.front().memory.size(), 2u);
  // Those of a GPU belong to no step: all stay.
  expected.gpu_samples = record_of(0, 5, 8).gpu_samples;
  expected.gpu_samples.insert(expected.gpu_samples.end(), later.gpu_samples.begin(),
                              later.gpu_samples.end());
  EXPECT_EQ(trace.ranks.front().gpu_samples, expected.gpu_samples);
}

void write_rank(h5::Group group, const RankRecord& record) {
  group.set_attribute("place", std::string_view(record.place));
  group.set_attribute("host", std::string_view(record.host));
  group.set_attribute("clock_skew_ns", record.clock_skew_ns);
  write_rows(group, "events", event_fields(), std::vector<TraceEvent>{});
  write_rows(group, "memory", memory_fields(), std::vector<MemoryFileRow>{});
}

TEST_F(TraceFile, ReadsGpuSamplesOfAFileWithoutTheLaterColumns) {
  const RankRecord record = record_of(0, 5, 6);
  {
    h5::File file = h5::File::create(path_);
    file.set_attribute("format_version", kTraceVersion);
    file.set_attribute("deck", std::string_view("deck text"));
    for (const char* axis : {"pipeline", "data", "tensor"}) file.set_attribute(axis, int64_t{1});
    write_names(file, "names", {});
    write_rows(file, "samples", sample_fields(), record.samples);
    std::vector<h5::Field> columns = gpu_sample_fields();
    EXPECT_GT(std::erase_if(columns, [](const h5::Field& field) { return field.optional; }), 0u);
    write_rows(file, "gpu_samples", columns, record.gpu_samples);
    write_rank(file.create_group(rank_group(0)), record);
    file.close();
  }
  std::vector<GpuSample> expected = record.gpu_samples;
  for (GpuSample& sample : expected) {
    sample.sm_activity = sample.tensor_activity = sample.sm_occupancy =
        sample.memory_bandwidth_utilisation = GpuSample::kUnknown;
  }
  EXPECT_EQ(read_trace(path_).ranks.front().gpu_samples, expected);
  write({1, 1, 1}, {record});
  expected.insert(expected.end(), record.gpu_samples.begin(), record.gpu_samples.end());
  EXPECT_EQ(read_trace(path_).ranks.front().gpu_samples, expected) << "a job that goes on";
}

TEST_F(TraceFile, StartsAnewOnAnotherMesh) {
  write({1, 1, 1}, {record_of(0, 5, 8)});
  write({2, 1, 1}, {record_of(0, 9, 10), record_of(1, 9, 10)});
  EXPECT_EQ(read_trace(path_).first_step(), 9);
}

TEST_F(TraceFile, RefusesDamageAndLaterVersionsWithTheFilesName) {
  const auto message = [&] {
    try {
      read_trace(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  std::ofstream(path_) << "not HDF5";
  EXPECT_NE(message().find("trace.h5"), std::string::npos) << message();
  {
    h5::File file = h5::File::create(path_);
    file.set_attribute("format_version", int64_t{kTraceVersion + 1});
    file.close();
  }
  EXPECT_NE(message().find("format_version 2"), std::string::npos) << message();
}

TEST_F(TraceFile, LastWindowIsWhatFollowsTheLastGap) {
  write({1, 1, 1}, {record_of(0, 2, 5)});
  write({1, 1, 1}, {record_of(0, 9, 12)});
  const Trace window = read_trace(path_).last_window();
  EXPECT_EQ(window.first_step(), 9);
  EXPECT_EQ(window.end_step(), 12);
  EXPECT_EQ(window.ranks.front().events, record_of(0, 9, 12).events);
  EXPECT_EQ(window.ranks.front().samples, record_of(0, 9, 12).samples);
  EXPECT_EQ(window.last_window().first_step(), 9);
}

TEST(RankRecord, TravelsAsBytes) {
  const RankRecord record = record_of(3, 1, 4);
  EXPECT_EQ(unpack(pack(record)), record);
  EXPECT_EQ(unpack(pack({})), RankRecord{});
  std::vector<std::byte> bytes = pack(record);
  bytes.pop_back();
  EXPECT_THROW(unpack(bytes), Error);
}

TEST(HostSample, SeesThisProcess) {
  const HostSample sample = read_host_sample();
  EXPECT_GT(sample.resident_bytes, 1'000'000);
  EXPECT_GE(sample.cpu_seconds, 0);
}

TEST(EventName, IsThereForEveryNameAndLane) {
  EXPECT_EQ(event_name(static_cast<int32_t>(Op::backward)), "backward");
  EXPECT_EQ(event_name(static_cast<int32_t>(HostWork::data_wait)), "data_wait");
  EXPECT_EQ(event_lane(kMainLane), "main");
  EXPECT_THROW(event_name(kEventNames), Error);
}

}  // namespace
}  // namespace voltapile
