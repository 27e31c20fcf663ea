#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>

#include <unistd.h>

#include "voltapile/base/error.hpp"
#include "voltapile/device/host/disk.hpp"

#include "disk_queue.hpp"
#include "disk_scratch.hpp"

namespace voltapile::host {
namespace {

constexpr size_t kPiece = DiskFile::kPieceBytes, kDepth = DiskFile::kQueueDepth;
constexpr size_t kPage = 4096;

using Memory = std::unique_ptr<std::byte, decltype(&std::free)>;
// Untouched, so it takes no room before it is used.
Memory pages(size_t bytes) {
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kPage, bytes));
  if (!data)
    throw Error(
        ExitCode::does_not_fit,
        format("a file's buffers need {} bytes of host memory, which the system refused", bytes));
  return {data, &std::free};
}

size_t round_down(size_t at, size_t unit) { return at / unit * unit; }
size_t round_up(size_t at, size_t unit) { return round_down(at + unit - 1, unit); }

}  // namespace

struct DiskFile::Impl {
  // One way, to or from the disk; its calls take turns.
  struct Side {
    std::mutex turn;
    std::unique_ptr<DiskQueue> queue;
    Memory copies = pages(kDepth * kPiece);
  };
  // A request, or what is left of it.
  struct Slot {
    Request request;
    std::byte* caller = nullptr;  // where its bytes belong, if it goes through a copy
    size_t caller_bytes = 0;
  };

  ScratchFile file;
  const size_t bytes;
  std::string why_threads;
  Side reads, writes;
  std::mutex edge_turn;
  Memory edge_block = pages(kPage);

  Impl(const std::filesystem::path& folder, const std::string& name, size_t size)
      : file(folder, name, size), bytes(size) {
    reads.queue = make_uring_queue(file.descriptor(), why_threads);
    if (reads.queue) writes.queue = make_uring_queue(file.descriptor(), why_threads);
    if (writes.queue) return;
    for (Side* side : {&reads, &writes}) side->queue = make_thread_queue(file.descriptor());
  }

  [[noreturn]] void fail(Transfer kind, size_t offset, size_t count, const std::string& why) const {
    throw Error(ExitCode::failure,
                format("{} {} bytes at offset {} of {} (unlinked scratch of memory.nvme_dir) "
                       "failed: {}",
                       kind == Transfer::read ? "reading" : "writing", count, offset,
                       file.path().string(), why));
  }

  void transfer(Transfer kind, size_t offset, std::byte* memory, size_t count) {
    VP_CHECK(offset <= bytes && count <= bytes - offset, "bytes {}:{} of a file of {}", offset,
             offset + count, bytes);
    if (count == 0) return;
    const size_t end = offset + count, block = file.block();
    const size_t first = std::min(end, round_up(offset, block));
    const size_t last = std::max(first, round_down(end, block));
    const auto at = [&](size_t place) { return memory + (place - offset); };
    if (offset < first) edge(kind, offset, at(offset), first - offset);
    if (first < last) middle(kind, first, at(first), last - first);
    if (last < end) edge(kind, last, at(last), end - last);
  }

  // Some bytes of one block. Others may be doing the same to its other bytes.
  void edge(Transfer kind, size_t offset, std::byte* memory, size_t count) {
    std::lock_guard lock(edge_turn);
    std::byte* const block = edge_block.get();
    const size_t begin = round_down(offset, file.block());
    plain(Transfer::read, begin, block);
    if (kind == Transfer::read) {
      std::memcpy(memory, block + (offset - begin), count);
    } else {
      std::memcpy(block + (offset - begin), memory, count);
      plain(Transfer::write, begin, block);
    }
  }

  void plain(Transfer kind, size_t offset, std::byte* block) const {
    const auto place = static_cast<off_t>(offset);
    ssize_t done = 0;
    do {
      done = kind == Transfer::read ? pread(file.descriptor(), block, file.block(), place)
                                    : pwrite(file.descriptor(), block, file.block(), place);
    } while (done < 0 && errno == EINTR);
    if (done < 0) fail(kind, offset, file.block(), std::strerror(errno));
    if (static_cast<size_t>(done) != file.block())
      fail(kind, offset, file.block(), format("only {} bytes were transferred", done));
  }

  // Whole blocks.
  void middle(Transfer kind, size_t offset, std::byte* memory, size_t count) {
    Side& side = kind == Transfer::read ? reads : writes;
    std::lock_guard lock(side.turn);
    const bool copied = reinterpret_cast<uintptr_t>(memory) % file.memory_block() != 0;
    std::array<Slot, kDepth> slots;
    size_t next = 0, in_flight = 0;
    std::exception_ptr failure;
    const auto submit = [&](size_t index) {
      try {
        side.queue->submit(index, slots[index].request);
        ++in_flight;
      } catch (const Error&) {
        if (!failure) failure = std::current_exception();
      }
    };
    const auto start = [&](size_t index) {
      const size_t size = std::min(kPiece, count - next);
      std::byte* const theirs = memory + next;
      std::byte* const copy = side.copies.get() + index * kPiece;
      if (copied && kind == Transfer::write) std::memcpy(copy, theirs, size);
      slots[index] = {{kind, offset + next, copied ? copy : theirs, size}, theirs, size};
      next += size;
      submit(index);
    };
    for (size_t index = 0; index < kDepth && next < count && !failure; ++index) start(index);
    // After a failure too, until nothing uses the caller's memory any more.
    while (in_flight > 0) {
      const DiskQueue::Done done = side.queue->wait();
      --in_flight;
      Slot& slot = slots[done.slot];
      try {
        if (advance(slot.request, done.result)) {
          submit(done.slot);
          continue;
        }
      } catch (const Error&) {
        if (!failure) failure = std::current_exception();
      }
      if (failure) continue;
      if (copied && kind == Transfer::read)
        std::memcpy(slot.caller, side.copies.get() + done.slot * kPiece, slot.caller_bytes);
      if (next < count) start(done.slot);
    }
    if (failure) std::rethrow_exception(failure);
  }

  // Whether the request must go on, with what is then left of it.
  bool advance(Request& request, int64_t result) const {
    if (result == -EINTR || result == -EAGAIN) return true;
    if (result < 0)
      fail(request.kind, request.offset, request.bytes, std::strerror(static_cast<int>(-result)));
    const auto done = static_cast<size_t>(result);
    if (done == request.bytes) return false;
    if (done == 0 || done % file.block() != 0 || done % file.memory_block() != 0)
      fail(request.kind, request.offset, request.bytes,
           format("only {} bytes were transferred", done));
    request.offset += done;
    request.memory += done;
    request.bytes -= done;
    return true;
  }
};

DiskFile::DiskFile(const std::filesystem::path& folder, const std::string& name, size_t bytes)
    : impl_(std::make_unique<Impl>(folder, name, bytes)) {}
DiskFile::~DiskFile() = default;

void DiskFile::read(size_t offset, std::span<std::byte> into) {
  impl_->transfer(Transfer::read, offset, into.data(), into.size());
}

// Not written to: one kind of request serves both ways.
void DiskFile::write(size_t offset, std::span<const std::byte> from) {
  impl_->transfer(Transfer::write, offset, const_cast<std::byte*>(from.data()), from.size());
}

std::string DiskFile::describe() const {
  const std::string& why = impl_->why_threads;
  return (why.empty() ? "io_uring" : format("{} threads (io_uring: {})", kDiskThreads, why)) +
         (impl_->file.direct() ? ", direct" : ", buffered (the file system refuses direct I/O)");
}

}  // namespace voltapile::host
