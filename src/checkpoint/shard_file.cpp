#include "shard_file.hpp"

#include <algorithm>
#include <atomic>

#include <sys/stat.h>

namespace voltapile {
namespace {

constexpr auto kFault = ExitCode::failure;

size_t whole_pages(size_t bytes) { return bytes / ShardFile::kPage * ShardFile::kPage; }

// Writes as much as the file takes; false where it refuses, with errno.
bool write_all(int fd, int64_t at, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t wrote = ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(at));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote == 0) errno = ENOSPC;
    if (wrote <= 0) return false;
    at += wrote;
    from = from.subspan(static_cast<size_t>(wrote));
  }
  return true;
}

}  // namespace

ShardFile::ShardFile(const std::filesystem::path& path)
    : path_(path), file_(path, O_RDWR, kFault, "cannot open this file") {
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
  direct_ = ::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
  if (direct_ < 0) refusal_ = std::strerror(errno);
}

ShardFile::~ShardFile() {
  if (direct_ >= 0) ::close(direct_);
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

void ShardFile::write(int64_t at, std::span<const std::byte> from) {
  if (direct_ >= 0 && from.size() >= kLong) {
    const size_t head = whole_pages(static_cast<size_t>(at) + kPage - 1) - static_cast<size_t>(at);
    const size_t pages = head < from.size() ? whole_pages(from.size() - head) : 0;
    if (pages > 0 && write_past_cache(at + static_cast<int64_t>(head), from.subspan(head, pages))) {
      write_through_cache(at, from.first(head));
      write_through_cache(at + static_cast<int64_t>(head + pages), from.subspan(head + pages));
      return;
    }
  }
  write_through_cache(at, from);
}

// False where the file system takes the flag and refuses the requests.
bool ShardFile::write_past_cache(int64_t at, std::span<const std::byte> pages) {
  const bool aligned = reinterpret_cast<uintptr_t>(pages.data()) % kPage == 0;
  if (!aligned && copies_ == nullptr) {
    copies_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, kBlock)));
    if (copies_ == nullptr)
      throw Error(kFault, format("{}: no memory to write from: {} bytes", path_.string(), kBlock));
  }
  for (size_t done = 0; done < pages.size();) {
    std::span<const std::byte> block = pages.subspan(done, std::min(kBlock, pages.size() - done));
    if (!aligned) {
      std::copy(block.begin(), block.end(), copies_.get());
      block = {copies_.get(), block.size()};
    }
    if (!write_in_two(at + static_cast<int64_t>(done), block)) {
      if (errno != EINVAL) throw_errno(kFault, path_, "cannot write");
      refusal_ = std::strerror(errno);
      ::close(std::exchange(direct_, -1));
      return false;
    }
    done += block.size();
  }
  return true;
}

// Two requests at a time keep a disk busier than one. False with errno where one is refused.
bool ShardFile::write_in_two(int64_t at, std::span<const std::byte> block) {
  std::atomic<int> fault = 0;
  const size_t half = whole_pages(block.size() / 2);
  both_.for_each_range(2, 1, [&](int64_t part, int64_t) {
    const bool written =
        part == 0 ? write_all(direct_, at, block.first(half))
                  : write_all(direct_, at + static_cast<int64_t>(half), block.subspan(half));
    if (!written) fault = errno;
  });
  errno = fault;
  return fault == 0;
}

void ShardFile::write_through_cache(int64_t at, std::span<const std::byte> from) {
  if (!write_all(file_.fd(), at, from)) throw_errno(kFault, path_, "cannot write");
}

void ShardFile::close() {
  if (direct_ >= 0 && ::close(std::exchange(direct_, -1)) != 0)
    throw_errno(kFault, path_, "cannot close this file");
  if (::fsync(file_.fd()) != 0) throw_errno(kFault, path_, "cannot sync this file to the disk");
  file_.close(path_);
}

}  // namespace voltapile
