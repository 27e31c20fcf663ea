// Files that are there whole or not at all, and digests of their bytes. Faults of writing are
// Error(failure), of reading Error(bad_data); both name the file and the system's cause.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace voltapile {

// Waits until the folder's entries are on the disk.
void sync_folder(const std::filesystem::path& path);

// Writes a new file, or empties and rewrites one, and syncs it.
void write_synced(const std::filesystem::path& path, std::span<const std::byte> bytes);

// Replaces `path` by `bytes` in one step: written to <path>.partial, synced, renamed. Whoever has
// the old file open keeps reading the old bytes.
void publish_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

// XXH3-128 of bytes that come one after another.
class RunningDigest {
 public:
  RunningDigest();
  ~RunningDigest();
  RunningDigest(const RunningDigest&) = delete;
  RunningDigest& operator=(const RunningDigest&) = delete;
  void reset();
  void add(std::span<const std::byte> bytes);
  std::string hex() const;

 private:
  void* state_;
};

struct Digest {
  int64_t bytes = 0;  // of the whole file
  std::string hex;    // XXH3-128 of the bytes from `from` on, as `xxhsum -H2` prints it
};
Digest digest_file(const std::filesystem::path& path, int64_t from = 0);
// The same of a whole file, and of ranges of its bytes, in one pass. Ranges ascend and do not
// overlap; what lies beyond the file's end is left out of their digests.
struct ByteRange {
  int64_t begin = 0, end = 0;
};
struct RangeDigests {
  Digest whole;
  std::vector<std::string> ranges;
};
RangeDigests digest_ranges(const std::filesystem::path& path, std::span<const ByteRange> ranges);
std::string digest_of(std::span<const std::byte> bytes);

}  // namespace voltapile
