#include "voltapile/device/host/memory.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include <sys/mman.h>

#include "voltapile/base/error.hpp"
#include "voltapile/base/units.hpp"

namespace voltapile::host {
namespace {

constexpr size_t kLargePage = size_t{1} << 21, kPage = 4096;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Buffer compute_memory(size_t bytes, std::string_view what, ThreadPool& pool) {
  const auto refuse = [&](const char* why) {
    throw Error(ExitCode::does_not_fit,
                format("{} needs {} of host memory, which the system refused ({})", what,
                       show_bytes(static_cast<double>(bytes)), why));
  };
  if (bytes > SIZE_MAX / 2) refuse("more than a process can address");
  const size_t mapped = round_up(std::max<size_t>(bytes, 1), kPage);
  // Not reserved: some virtual machines have more than they claim until it is touched.
  void* const raw = mmap(nullptr, mapped + kLargePage, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) refuse(std::strerror(errno));
  auto* const first = static_cast<std::byte*>(raw);
  auto* const data = first + (round_up(reinterpret_cast<uintptr_t>(raw), kLargePage) -
                              reinterpret_cast<uintptr_t>(raw));
  if (data > first) munmap(first, static_cast<size_t>(data - first));
  if (const auto rest = static_cast<size_t>(first + kLargePage - data); rest > 0)
    munmap(data + mapped, rest);
  madvise(data, mapped, MADV_HUGEPAGE);
  Buffer buffer(data, bytes, [mapped](void* p) { munmap(p, mapped); });
  const auto touch = [&](int64_t begin, int64_t end) {
    std::memset(data + begin, 0xff, static_cast<size_t>(end - begin));
  };
  pool.for_each_share(static_cast<int64_t>(bytes), kLargePage, std::ref(touch));
  return buffer;
}

}  // namespace voltapile::host
