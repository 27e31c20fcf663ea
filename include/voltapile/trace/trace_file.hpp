// trace.h5: written by rank 0, read by `report` and by plain h5py. docs/FILES.md describes it.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "voltapile/mesh/mesh.hpp"
#include "voltapile/trace/event.hpp"

namespace voltapile {

inline constexpr int64_t kTraceVersion = 1;

// A recorded run, or the windows of it that were recorded.
struct Trace {
  Mesh mesh;
  std::string deck;           // resolved, of the last window
  int64_t epoch_samples = 0;  // pictures to learn from; 0 in files of earlier versions
  std::vector<RankRecord> ranks;
  int64_t first_step() const;  // of the first event; 0 without one
  int64_t end_step() const;    // one past the last
  // The last steps that follow each other without a gap, with everything of theirs.
  Trace last_window() const;
};

// Error(bad_data) when the file is damaged, of a later version, or lacks a dataset. Events whose
// name this version does not know are left out. Samples are in their ranks' records.
Trace read_trace(const std::filesystem::path& path);

// Writes a new trace.h5 rank by rank, so that one rank's rows are in memory at a time.
class TraceWriter {
 public:
  // Writes to `aside`. What `earlier` holds is kept, if that file exists and is of the same mesh,
  // but for the steps that are recorded anew.
  TraceWriter(const std::filesystem::path& aside, const std::filesystem::path& earlier,
              const Mesh& mesh, const std::string& deck, int64_t epoch_samples = 0);
  ~TraceWriter();
  void add(const RankRecord& record);  // ranks in order, each once
  // Every rank was added. The file is whole and on the disk when this returns.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace voltapile
