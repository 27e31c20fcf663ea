#include "staged_communicator.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>

#include "stream.hpp"

namespace voltapile::cuda {
namespace {

// Longer tensors go in pieces: pinned memory is dear. All ranks cut alike.
constexpr size_t kPieceBytes = size_t{32} << 20;
constexpr size_t kLeastBytes = size_t{64} << 10;

// Pinned memory that communicators lend from the process and give back to it, not to the driver:
// that would wait there until the GPU is idle, with a lock that the lanes' host threads need to get
// it idle.
class Pool {
 public:
  static Pool& instance() {
    static auto* pool = new Pool;  // for as long as the process lives
    return *pool;
  }
  std::shared_ptr<Buffer> lend(size_t bytes, Device& device) {
    const size_t size = std::bit_ceil(std::max(bytes, kLeastBytes));
    std::unique_ptr<Buffer> buffer;
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = free_.find(size); at != free_.end()) {
        buffer = std::move(at->second);
        free_.erase(at);
      }
    }
    if (buffer == nullptr)
      buffer = std::make_unique<Buffer>(device.allocate_host(size, "staged tensors"));
    return {buffer.release(), [this](Buffer* back) {
              const std::lock_guard lock(mutex_);
              free_.emplace(back->bytes(), back);
            }};
  }

 private:
  std::mutex mutex_;
  std::multimap<size_t, std::unique_ptr<Buffer>> free_;
};

std::byte* at(const TensorView& t, int64_t element) {
  return static_cast<std::byte*>(t.data) + static_cast<size_t>(element) * bytes_of(t.dtype);
}

// f(begin, length) for consecutive pieces of `elements`, each of `copies` times its length at most
// kPieceBytes long.
template <class F>
void in_pieces(int64_t elements, DType dtype, int copies, F&& f) {
  const auto most = std::max<int64_t>(
      1, static_cast<int64_t>(kPieceBytes / bytes_of(dtype)) / std::max(copies, 1));
  for (int64_t begin = 0; begin < elements; begin += most)
    f(begin, std::min(most, elements - begin));
}

}  // namespace

StagedCommunicator::~StagedCommunicator() {
  if (last_ == nullptr) return;
  try {
    keep_until_done(*last_);
  } catch (const std::exception&) {
    // The lane takes no more work: the driver has stopped it, and nothing reads the memory.
  }
}

std::unique_ptr<Communicator> StagedCommunicator::split(int color, int key) {
  auto part = host().split(color, key);
  return part == nullptr ? nullptr : on_device(std::move(part), device_, Transport::staged);
}

// Nothing is enqueued on an idle lane: at the end of a run another rank of this process may free
// its memory, which waits for all lanes of the GPU with a lock that host work needs to begin.
void StagedCommunicator::keep_until_done(Stream& stream) {
  if (pinned_ == nullptr) return;
  const std::shared_ptr<Buffer> hold = std::move(pinned_);
  if (cudaStreamQuery(handle_of(stream)) != cudaErrorNotReady) return;
  stream.run_on_host([hold] {});
}

std::byte* StagedCommunicator::staging(size_t bytes, Stream& stream) {
  if (last_ != nullptr && last_ != &stream) device_.wait(stream, device_.record(*last_));
  last_ = &stream;
  if (pinned_ == nullptr || pinned_->bytes() < bytes) {
    keep_until_done(stream);
    pinned_ = Pool::instance().lend(bytes, device_);
  }
  return pinned_->data();
}

void StagedCommunicator::reduce_all(const TensorView& t, Reduction op, Stream& stream) {
  in_pieces(t.elements(), t.dtype, 1, [&](int64_t begin, int64_t length) {
    const size_t bytes = static_cast<size_t>(length) * bytes_of(t.dtype);
    const TensorView piece{staging(bytes, stream), t.dtype, {length}};
    device_.copy(piece.data, at(t, begin), bytes, stream);
    host().all_reduce(piece, op, stream);
    device_.copy(at(t, begin), piece.data, bytes, stream);
  });
}

void StagedCommunicator::scatter(const TensorView& in, const TensorView& out, Reduction op,
                                 Stream& stream) {
  const int64_t stride = out.elements();
  in_pieces(stride, in.dtype, size(), [&](int64_t begin, int64_t length) {
    const size_t bytes = static_cast<size_t>(length) * bytes_of(in.dtype);
    std::byte* memory = staging(bytes * static_cast<size_t>(size()), stream);
    const TensorView whole{memory, in.dtype, {size() * length}};
    for (int peer = 0; peer < size(); ++peer)
      device_.copy(at(whole, peer * length), at(in, peer * stride + begin), bytes, stream);
    const TensorView mine = whole.slice_flat(rank() * length, (rank() + 1) * length);
    host().reduce_scatter(whole, mine, op, stream);
    device_.copy(at(out, begin), mine.data, bytes, stream);
  });
}

void StagedCommunicator::gather(const TensorView& in, const TensorView& out, Stream& stream) {
  const int64_t stride = in.elements();
  in_pieces(stride, in.dtype, size(), [&](int64_t begin, int64_t length) {
    const size_t bytes = static_cast<size_t>(length) * bytes_of(in.dtype);
    std::byte* memory = staging(bytes * static_cast<size_t>(size()), stream);
    const TensorView whole{memory, in.dtype, {size() * length}};
    const TensorView mine = whole.slice_flat(rank() * length, (rank() + 1) * length);
    device_.copy(mine.data, at(in, begin), bytes, stream);
    host().all_gather(mine, whole, stream);
    for (int peer = 0; peer < size(); ++peer)
      device_.copy(at(out, peer * stride + begin), at(whole, peer * length), bytes, stream);
  });
}

void StagedCommunicator::spread(const TensorView& t, int root, Stream& stream) {
  in_pieces(t.elements(), t.dtype, 1, [&](int64_t begin, int64_t length) {
    const size_t bytes = static_cast<size_t>(length) * bytes_of(t.dtype);
    const TensorView piece{staging(bytes, stream), t.dtype, {length}};
    if (rank() == root) device_.copy(piece.data, at(t, begin), bytes, stream);
    host().broadcast(piece, root, stream);
    if (rank() != root) device_.copy(at(t, begin), piece.data, bytes, stream);
  });
}

// In rounds: the k-th pieces of all tensors that have one. Both ends of a transfer cut it alike,
// and between two ranks messages keep their order.
void StagedCommunicator::swap(std::span<const Transfer> transfers, Stream& stream) {
  constexpr size_t kAlignment = 256;
  size_t longest = 0, slots = 0;
  const auto slot_bytes = [&](const Transfer& transfer) {
    const size_t most = std::min(transfer.tensor.bytes(), kPieceBytes);
    return (most + kAlignment - 1) / kAlignment * kAlignment;
  };
  for (const Transfer& transfer : transfers) {
    longest = std::max(longest, transfer.tensor.bytes());
    slots += slot_bytes(transfer);
  }
  for (size_t begin = 0; begin < longest; begin += kPieceBytes) {
    std::byte* slot = staging(slots, stream);
    std::vector<Transfer> round;
    std::vector<std::pair<std::byte*, TensorView>> arrivals;
    for (const Transfer& transfer : transfers) {
      std::byte* mine = std::exchange(slot, slot + slot_bytes(transfer));
      if (begin >= transfer.tensor.bytes()) continue;
      const size_t bytes = std::min(kPieceBytes, transfer.tensor.bytes() - begin);
      std::byte* place = static_cast<std::byte*>(transfer.tensor.data) + begin;
      const TensorView piece{mine,
                             transfer.tensor.dtype,
                             {static_cast<int64_t>(bytes / bytes_of(transfer.tensor.dtype))}};
      if (transfer.direction == Direction::send) device_.copy(mine, place, bytes, stream);
      else arrivals.emplace_back(place, piece);
      round.push_back({transfer.direction, transfer.peer, piece});
    }
    host().exchange(round, stream);
    for (const auto& [place, piece] : arrivals)
      device_.copy(place, piece.data, piece.bytes(), stream);
  }
}

}  // namespace voltapile::cuda
