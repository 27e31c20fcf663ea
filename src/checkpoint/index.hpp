// index.h5: whole tensors as virtual datasets over the shards, the run's state, and the list of
// shards. Its first 512 bytes are text with the digest of the rest, since nothing else vouches for
// it.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/h5/h5.hpp"

#include "shard.hpp"

namespace voltapile {

// 2: /ranges. Checkpoints of version 1 are read, too.
constexpr int64_t kFormatVersion = 2, kOldestFormatVersion = 1;
constexpr const char* kIndexName = "index.h5";

struct ShardEntry {
  std::string file;
  int64_t bytes = 0;
  std::string digest;
};

// Made in memory while the shards are being written; finish() adds what is known only then.
class IndexDraft {
 public:
  // Error(failure) unless the pieces that are laid out cover every tensor of the model once.
  IndexDraft(const std::filesystem::path& folder, const RunState& state,
             const std::vector<Parameter>& model, const std::vector<ShardLayout>& layouts);
  // Writes and syncs <folder>/index.h5; a report for each layout.
  void finish(const std::vector<ShardReport>& reports);

 private:
  std::filesystem::path path_;
  std::vector<std::string> files_;  // of the layouts
  h5::File file_;
};

struct Index {
  h5::File file;
  std::filesystem::path path;
  RunState state;
  std::vector<ShardEntry> shards;
};
// The ranges of one shard by its place in the list, ascending; none in format version 1.
std::vector<StoredRange> read_ranges(const Index& index, size_t shard);

// Error(bad_data) when the file is missing, damaged or of another format version.
Index open_index(const std::filesystem::path& checkpoint);

// Where index.h5 keeps a state ("master", "m", "v", "ema") of the parameters.
h5::Group open_state(const Index& index, const std::string& state);

// Whether it has "ema", averaged weights.
bool has_averages(const Index& index);

// What is wrong with one shard's presence or size; empty = nothing.
std::string size_fault(const std::filesystem::path& checkpoint, const ShardEntry& shard);

// A virtual dataset reads as NaN, with no error, when the process may not open one more file: lets
// it open one for each shard if the hard limit allows. Returns a remark for the message that a NaN
// then causes; empty when the limit suffices.
std::string allow_open_files(size_t shards);

}  // namespace voltapile
