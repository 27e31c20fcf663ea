// Private to checkpoint: an open file.
#pragma once
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "voltapile/base/error.hpp"

namespace voltapile {

[[noreturn]] inline void throw_errno(ExitCode code, const std::filesystem::path& path,
                                     const char* what) {
  throw Error(code, format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags, ExitCode code, const char* what)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) throw_errno(code, path, what);
  }
  explicit Descriptor(int fd) : fd_(fd) {}  // negative: none
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }
  // Some file systems report a lost write only here.
  void close(const std::filesystem::path& path) {
    if (::close(std::exchange(fd_, -1)) != 0) {
      throw_errno(ExitCode::failure, path, "cannot close this file");
    }
  }

 private:
  int fd_;
};

}  // namespace voltapile
