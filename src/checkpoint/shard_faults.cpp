#include "shard_faults.hpp"

#include <algorithm>
#include <system_error>

#include "voltapile/checkpoint/durable.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

std::string list_ranges(const std::vector<StoredRange>& ranges) {
  std::vector<std::string> words;
  for (const StoredRange& range : ranges)
    words.push_back(format("bytes {}:{}, {}", range.begin, range.end, tensor_of(range.dataset)));
  return join(words, "; ");
}

std::string missing(const fs::path& path, const std::vector<StoredRange>& ranges) {
  std::vector<std::string> tensors;
  for (const StoredRange& range : ranges)
    if (range.dataset.starts_with("/master/")) tensors.push_back(range.dataset.substr(8));
  return path.string() + ": missing" +
         (tensors.empty() ? "" : "; it held pieces of " + join(tensors, ", "));
}

// What `found` is instead of the shard that was saved.
std::string describe(const fs::path& path, const Index& index, const ShardEntry& shard,
                     const std::vector<StoredRange>& ranges, const RangeDigests& found) {
  for (const ShardEntry& other : index.shards) {
    if (other.bytes == found.whole.bytes && other.digest == found.whole.hex)
      return format("{}: it is {} under another name", path.string(), other.file);
  }
  std::string fault = path.string() + ": damaged";
  if (found.whole.bytes != shard.bytes)
    fault = format("{}: {} bytes instead of {}", path.string(), found.whole.bytes, shard.bytes);
  if (ranges.empty())
    return format("{}: digest {} instead of {}", fault, found.whole.hex, shard.digest);
  std::vector<StoredRange> bad;
  size_t tensors = 0, bad_tensors = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const bool is_tensor = !ranges[i].dataset.empty();
    tensors += is_tensor ? 1 : 0;
    if (ranges[i].digest == found.ranges[i] && ranges[i].end <= found.whole.bytes) continue;
    bad_tensors += is_tensor ? 1 : 0;
    bad.push_back(ranges[i]);
  }
  if (bad.empty()) return fault + ": every byte that was saved is there, and more at the end";
  if (tensors > 1 && bad_tensors == tensors)
    fault += ": no tensor in it is what was saved; is it another checkpoint's file?";
  return format("{}: {}", fault, list_ranges(bad));
}

}  // namespace

std::string shard_fault(const fs::path& checkpoint, const Index& index, size_t shard) {
  const ShardEntry& entry = index.shards[shard];
  const fs::path path = checkpoint / entry.file;
  try {
    const std::vector<StoredRange> ranges = read_ranges(index, shard);
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return missing(path, ranges);
    std::vector<ByteRange> places;
    for (const StoredRange& range : ranges) places.push_back({range.begin, range.end});
    const RangeDigests found = digest_ranges(path, places);
    if (found.whole.bytes == entry.bytes && found.whole.hex == entry.digest) return "";
    return describe(path, index, entry, ranges, found);
  } catch (const Error& error) { return error.what(); }
}

std::vector<std::string> dataset_faults(const fs::path& checkpoint, const Index& index,
                                        size_t shard, int64_t& read) {
  std::vector<std::string> faults;
  const fs::path path = checkpoint / index.shards[shard].file;
  try {
    const h5::File file = h5::File::open(path);
    std::vector<float> values;
    for (const StoredRange& range : read_ranges(index, shard)) {
      if (range.dataset.empty()) continue;
      const size_t slash = range.dataset.find('/', 1);
      const h5::Dataset dataset = file.open_group(range.dataset.substr(1, slash - 1))
                                      .open_dataset(range.dataset.substr(slash + 1));
      values.resize(static_cast<size_t>(dataset.shape().elements()));
      dataset.read(values.data(), DType::f32);
      ++read;
      if (digest_of(std::as_bytes(std::span(values))) != range.digest)
        faults.push_back(format("{}: its values are not those that were saved", dataset.where()));
    }
  } catch (const Error& error) { faults.emplace_back(error.what()); }
  return faults;
}

}  // namespace voltapile
