#include "target.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include <unistd.h>

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include "library.hpp"

namespace voltapile::h5 {

Target::~Target() {
  if (fd >= 0) ::close(fd);
}

void Target::write(uint64_t at, const void* data, size_t bytes) noexcept {
  if (!fault.empty()) return;
  const auto* next = static_cast<const std::byte*>(data);
  if (fd < 0) {
    resize(std::max<uint64_t>(end, at + bytes));
    if (fault.empty()) std::copy_n(next, bytes, memory.begin() + static_cast<int64_t>(at));
    return;
  }
  while (bytes > 0) {
    const ssize_t wrote = ::pwrite(fd, next, bytes, static_cast<off_t>(at));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      fault = wrote == 0 ? "nothing was written" : std::strerror(errno);
      return;
    }
    at += static_cast<uint64_t>(wrote);
    next += wrote;
    bytes -= static_cast<size_t>(wrote);
    end = std::max(end, at);
  }
}

void Target::read(uint64_t at, void* data, size_t bytes) noexcept {
  auto* next = static_cast<std::byte*>(data);
  const size_t there = at < end ? static_cast<size_t>(std::min<uint64_t>(bytes, end - at)) : 0;
  std::fill(next + there, next + bytes, std::byte{0});
  if (fd < 0) {
    std::copy_n(memory.begin() + static_cast<int64_t>(at), there, next);
    return;
  }
  for (size_t done = 0; done < there;) {
    const ssize_t got = ::pread(fd, next + done, there - done, static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      if (fault.empty()) fault = got == 0 ? "the file was cut" : std::strerror(errno);
      std::fill(next + done, next + there, std::byte{0});
      return;
    }
    done += static_cast<size_t>(got);
  }
}

void Target::resize(uint64_t bytes) noexcept {
  if (!fault.empty()) return;
  if (fd >= 0) {
    if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) fault = std::strerror(errno);
  } else {
    try {
      memory.resize(bytes);
    } catch (const std::exception&) { fault = "out of memory"; }
  }
  if (fault.empty()) end = bytes;
}

namespace {

// What H5Pset_driver copies.
struct Settings {
  Target* target;
};

// HDF5 sees the first member only.
struct OpenFile {
  H5FD_t common;
  Target* target;
  haddr_t allocated;
};
OpenFile& of(H5FD_t* file) { return *reinterpret_cast<OpenFile*>(file); }
const OpenFile& of(const H5FD_t* file) { return *reinterpret_cast<const OpenFile*>(file); }

H5FD_class_t describe_driver() {
  H5FD_class_t d{};
#if H5_VERSION_GE(1, 13, 0)
  d.version = H5FD_CLASS_VERSION;
  d.value = static_cast<H5FD_class_value_t>(600);  // of the range left to programs
#endif
  d.name = "voltapile";
  d.maxaddr = static_cast<haddr_t>(INT64_MAX);
  d.fc_degree = H5F_CLOSE_WEAK;
  d.fapl_size = sizeof(Settings);
  d.open = [](const char*, unsigned, hid_t access, haddr_t) -> H5FD_t* {
    const auto* settings = static_cast<const Settings*>(H5Pget_driver_info(access));
    return settings == nullptr ? nullptr : &(new OpenFile{{}, settings->target, 0})->common;
  };
  d.close = [](H5FD_t* file) -> herr_t {
    delete &of(file);
    return 0;
  };
  d.cmp = [](const H5FD_t* a, const H5FD_t* b) -> int {
    const std::less<const Target*> before;
    return before(of(a).target, of(b).target) ? -1 : before(of(b).target, of(a).target) ? 1 : 0;
  };
  // No sieve for data: every H5Dwrite goes straight to the target.
  d.query = [](const H5FD_t*, unsigned long* flags) -> herr_t {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA |
             H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
  };
  d.get_eoa = [](const H5FD_t* file, H5FD_mem_t) -> haddr_t { return of(file).allocated; };
  d.set_eoa = [](H5FD_t* file, H5FD_mem_t, haddr_t address) -> herr_t {
    of(file).allocated = address;
    return 0;
  };
  d.get_eof = [](const H5FD_t* file, H5FD_mem_t) -> haddr_t { return of(file).target->end; };
  d.read = [](H5FD_t* file, H5FD_mem_t, hid_t, haddr_t at, size_t bytes, void* data) -> herr_t {
    of(file).target->read(at, data, bytes);
    return 0;
  };
  d.write = [](H5FD_t* file, H5FD_mem_t, hid_t, haddr_t at, size_t bytes,
               const void* data) -> herr_t {
    of(file).target->write(at, data, bytes);
    return 0;
  };
  d.truncate = [](H5FD_t* file, hid_t, hbool_t) -> herr_t {
    of(file).target->resize(of(file).allocated);
    return 0;
  };
  const H5FD_mem_t lists[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(lists), std::end(lists), d.fl_map);
  return d;
}

}  // namespace

void use_target(hid_t access, Target& target, ExitCode code, const std::string& where) {
  static const H5FD_class_t description = describe_driver();
  static const hid_t driver = H5FDregister(&description);
  check(driver, code, where, "cannot register a driver");
  const Settings settings{&target};
  check(H5Pset_driver(access, driver, &settings), code, where, "cannot choose a driver");
}

}  // namespace voltapile::h5
