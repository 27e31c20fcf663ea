#include "shard_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include <sys/stat.h>

namespace voltapile {
namespace {

constexpr auto kFault = ExitCode::failure;
// Of one writer's memory for what does not begin at a page.
constexpr size_t kCopyBytes = size_t{2} << 20;
// ext4 lets a write through the cache wait for all requests in flight, and others for it: small
// ones are put off until there are so many.
constexpr size_t kMostSmallBytes = size_t{16} << 20;

size_t whole_pages(size_t bytes) { return bytes / ShardFile::kPage * ShardFile::kPage; }

// 0, or the errno with which the file refuses.
int write_all(int fd, int64_t at, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t wrote = ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(at));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return wrote == 0 ? ENOSPC : errno;
    at += wrote;
    from = from.subspan(static_cast<size_t>(wrote));
  }
  return 0;
}

}  // namespace

ShardFile::ShardFile(const std::filesystem::path& path)
    : path_(path),
      file_(path, O_RDWR, kFault, "cannot open this file"),
      direct_(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC)) {
  if (direct_.fd() < 0) {
    refusal_ = std::strerror(errno);
    refuses_ = true;
  }
  struct stat about {};
  if (::fstat(file_.fd(), &about) != 0) throw_errno(kFault, path_, "cannot look at this file");
  bytes_ = about.st_size;
  // Not every file system can.
  const int fault = ::fallocate(file_.fd(), 0, 0, about.st_size) == 0 ? 0 : errno;
  if (fault != 0 && fault != EOPNOTSUPP && fault != ENOSYS)
    throw Error(kFault, format("{}: cannot reserve {} bytes: {}", path_.string(), bytes_,
                               std::strerror(fault)));
  // What is read is HDF5's own, far apart: what lies behind it would be read for nothing.
  ::posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_RANDOM);
}

void ShardFile::read(int64_t at, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(file_.fd(), into.data(), into.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = ENODATA;
    if (got <= 0) throw_errno(kFault, path_, "cannot read back");
    at += got;
    into = into.subspan(static_cast<size_t>(got));
  }
}

int64_t ShardFile::write(int64_t at, std::span<const std::byte> from) {
  size_t head = from.size(), pages = 0;
  if (from.size() >= kLong) {
    head = whole_pages(static_cast<size_t>(at) + kPage - 1) - static_cast<size_t>(at);
    pages = whole_pages(from.size() - head);
  }
  keep_small(at, from.first(head));
  if (pages > 0)
    newest_ = writers_.add([this, at = at + static_cast<int64_t>(head),
                            pages = from.subspan(head, pages)] { write_pages(at, pages); });
  keep_small(at + static_cast<int64_t>(head + pages), from.subspan(head + pages));
  return newest_;
}

void ShardFile::write_pages(int64_t at, std::span<const std::byte> pages) {
  if (!refuses_) {
    const int fault = write_past_cache(at, pages);
    if (fault == 0) return;
    errno = fault;
    if (fault != EINVAL) throw_errno(kFault, path_, "cannot write");
    // The file system takes the flag and refuses the requests.
    const std::lock_guard lock(refusing_);
    refusal_ = std::strerror(fault);
    refuses_ = true;
  }
  write_through_cache(at, pages);
}

// 0, or the errno of a request that is refused.
int ShardFile::write_past_cache(int64_t at, std::span<const std::byte> pages) const {
  if (reinterpret_cast<uintptr_t>(pages.data()) % kPage == 0)
    return write_all(direct_.fd(), at, pages);
  const size_t most = std::min(kCopyBytes, pages.size());
  const std::unique_ptr<std::byte, decltype(&std::free)> copy(
      static_cast<std::byte*>(std::aligned_alloc(kPage, most)), &std::free);
  if (copy == nullptr)
    throw Error(kFault, format("{}: no memory to write from: {} bytes", path_.string(), most));
  for (size_t done = 0; done < pages.size();) {
    const auto block = pages.subspan(done, std::min(most, pages.size() - done));
    std::copy(block.begin(), block.end(), copy.get());
    const int fault =
        write_all(direct_.fd(), at + static_cast<int64_t>(done), {copy.get(), block.size()});
    if (fault != 0) return fault;
    done += block.size();
  }
  return 0;
}

void ShardFile::keep_small(int64_t at, std::span<const std::byte> from) {
  if (from.empty()) return;
  small_.push_back({at, from.size()});
  small_bytes_.insert(small_bytes_.end(), from.begin(), from.end());
  if (small_bytes_.size() >= kMostSmallBytes) write_small();
}

void ShardFile::write_small() {
  std::span<const std::byte> left = small_bytes_;
  for (const Small& small : small_) {
    write_through_cache(small.at, left.first(small.bytes));
    left = left.subspan(small.bytes);
  }
  small_.clear();
  small_bytes_.clear();
}

void ShardFile::write_through_cache(int64_t at, std::span<const std::byte> from) const {
  errno = write_all(file_.fd(), at, from);
  if (errno != 0) throw_errno(kFault, path_, "cannot write");
}

void ShardFile::close() {
  write_small();
  wait(newest_);
  if (direct_.fd() >= 0) direct_.close(path_);
  if (::fsync(file_.fd()) != 0) throw_errno(kFault, path_, "cannot sync this file to the disk");
  file_.close(path_);
}

}  // namespace voltapile
