#include "disk_scratch.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "voltapile/base/error.hpp"
#include "voltapile/base/units.hpp"

namespace voltapile::host {
namespace {

// A multiple of every disk's block; the file's size is rounded up to it.
constexpr size_t kBlock = 4096;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

[[noreturn]] void refuse(const std::filesystem::path& folder, const std::string& why) {
  throw Error(ExitCode::bad_input,
              format("memory.nvme_dir: no file can be created in {}: {}; name a folder on a local "
                     "disk where this user may write",
                     folder.string(), why));
}

std::string free_bytes_of(const std::filesystem::path& folder) {
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0) return "an unknown number of bytes";
  return show_bytes(static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize));
}

}  // namespace

ScratchFile::ScratchFile(const std::filesystem::path& folder, const std::string& name, size_t bytes)
    : path_(folder / name) {
  create(folder, bytes);
  direct_ = make_direct();
  if (!direct_) block_ = memory_block_ = 1;
}

ScratchFile::~ScratchFile() { close(descriptor_); }

void ScratchFile::create(const std::filesystem::path& folder, size_t bytes) {
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  if (fault) refuse(folder, fault.message());
  // The process's number: a killed job's file of this name may still be about to be unlinked.
  path_ += format(".{}", getpid());
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor_ < 0) refuse(folder, std::strerror(errno));
  unlink(path_.c_str());
  try {
    allocate(folder, round_up(std::max<size_t>(bytes, 1), kBlock));
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

void ScratchFile::allocate(const std::filesystem::path& folder, size_t bytes) {
  const auto size = static_cast<off_t>(bytes);
  int error = fallocate(descriptor_, 0, 0, size) == 0 ? 0 : errno;
  // Where the file system cannot reserve, the C library writes into every block instead.
  if (error == EOPNOTSUPP || error == ENOSYS) error = posix_fallocate(descriptor_, 0, size);
  if (error == 0) return;
  ftruncate(descriptor_, 0);  // gives back what was reserved
  throw Error(ExitCode::failure,
              format("{} needs {} on disk, of which {} are free in {} (memory.nvme_dir): {}",
                     path_.string(), show_bytes(static_cast<double>(bytes)), free_bytes_of(folder),
                     folder.string(), std::strerror(error)));
}

bool ScratchFile::make_direct() {
  block_ = memory_block_ = kBlock;
#ifdef STATX_DIOALIGN
  struct statx about {};
  if (statx(descriptor_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &about) == 0 &&
      (about.stx_mask & STATX_DIOALIGN) != 0) {
    if (about.stx_dio_offset_align == 0 || about.stx_dio_offset_align > kBlock) return false;
    memory_block_ = about.stx_dio_mem_align;
  }
#endif
  const int flags = fcntl(descriptor_, F_GETFL);
  if (fcntl(descriptor_, F_SETFL, flags | O_DIRECT) != 0) return false;
  // Some file systems take the flag and refuse the requests.
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(kBlock, kBlock),
                                                          &std::free);
  if (pread(descriptor_, block.get(), kBlock, 0) == static_cast<ssize_t>(kBlock)) return true;
  fcntl(descriptor_, F_SETFL, flags);
  return false;
}

}  // namespace voltapile::host
