#include "voltapile/checkpoint/durable.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "voltapile/base/error.hpp"

#include "descriptor.hpp"

namespace voltapile {
namespace {

// Calls f(offset, bytes) for a whole file, block by block; returns its size.
template <class F>
int64_t read_blocks(const std::filesystem::path& path, const F& f) {
  const auto code = ExitCode::bad_data;
  const Descriptor file(path, O_RDONLY, code, "cannot open this file");
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
  constexpr size_t kBlock = size_t{4} << 20;
  std::vector<std::byte> block(kBlock);
  int64_t offset = 0;
  while (true) {
    const ssize_t got = ::read(file.fd(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(code, path, "cannot read");
    if (got == 0) return offset;
    f(offset, std::span<const std::byte>(block.data(), static_cast<size_t>(got)));
    offset += got;
  }
}

}  // namespace

RunningDigest::RunningDigest() : state_(XXH3_createState()) { reset(); }
RunningDigest::~RunningDigest() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
void RunningDigest::reset() { XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_)); }
void RunningDigest::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}
std::string RunningDigest::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_));
  return format("{:016x}{:016x}", hash.high64, hash.low64);
}

void sync_folder(const std::filesystem::path& path) {
  const char* what = "cannot sync this folder to the disk";
  Descriptor folder(path, O_RDONLY | O_DIRECTORY, ExitCode::failure, what);
  if (::fsync(folder.fd()) != 0) throw_errno(ExitCode::failure, path, what);
}

void write_synced(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const auto code = ExitCode::failure;
  Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC, code, "cannot create this file");
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(file.fd(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw_errno(code, path, "cannot write");
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
  if (::fsync(file.fd()) != 0) throw_errno(code, path, "cannot sync this file to the disk");
  file.close(path);
}

void publish_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::filesystem::path aside = path;
  aside += ".partial";
  try {
    write_synced(aside, bytes);
  } catch (const Error&) {
    std::error_code ignored;
    std::filesystem::remove(aside, ignored);
    throw;
  }
  if (::rename(aside.c_str(), path.c_str()) != 0) {
    throw_errno(ExitCode::failure, path, "cannot move the new file into place");
  }
}

Digest digest_file(const std::filesystem::path& path, int64_t from) {
  RunningDigest hash;
  const int64_t bytes = read_blocks(path, [&](int64_t offset, std::span<const std::byte> block) {
    const auto size = static_cast<int64_t>(block.size());
    hash.add(block.subspan(static_cast<size_t>(std::clamp<int64_t>(from - offset, 0, size))));
  });
  return {bytes, hash.hex()};
}

RangeDigests digest_ranges(const std::filesystem::path& path, std::span<const ByteRange> ranges) {
  RunningDigest whole, part;
  RangeDigests digests;
  size_t next = 0;  // whose digest is being made
  const int64_t bytes = read_blocks(path, [&](int64_t offset, std::span<const std::byte> block) {
    whole.add(block);
    const int64_t end = offset + static_cast<int64_t>(block.size());
    while (next < ranges.size() && ranges[next].begin < end) {
      const int64_t from = std::max(ranges[next].begin, offset);
      const int64_t to = std::min(ranges[next].end, end);
      part.add(block.subspan(static_cast<size_t>(from - offset), static_cast<size_t>(to - from)));
      if (ranges[next].end > end) break;
      digests.ranges.push_back(part.hex());
      part.reset();
      ++next;
    }
  });
  for (; next < ranges.size(); ++next) {
    digests.ranges.push_back(part.hex());
    part.reset();
  }
  digests.whole = {bytes, whole.hex()};
  return digests;
}

std::string digest_of(std::span<const std::byte> bytes) {
  RunningDigest hash;
  hash.add(bytes);
  return hash.hex();
}

}  // namespace voltapile
