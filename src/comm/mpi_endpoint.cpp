#include "mpi_endpoint.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace voltapile::comm {
namespace {

// A longer tensor goes as up to kMessages messages: MPI counts with an int, and the arrival of one
// tells a waiting rank to stay awake for the rest. Both sides cut by this rule.
constexpr size_t kShortMessage = size_t{1} << 20, kLongestMessage = size_t{1} << 30;
constexpr size_t kMessages = 32;

size_t message_bytes(size_t bytes) {
  return std::clamp((bytes + kMessages - 1) / kMessages, kShortMessage, kLongestMessage);
}

// Up to here one round of whole tensors beats two rounds of pieces.
constexpr size_t kWholeBytes = size_t{8} << 10;
// Received pieces wait here for their turn in the sum; two blocks are in flight.
constexpr size_t kScratchBytes = size_t{8} << 20;
constexpr size_t kShortestBlock = size_t{32} << 10, kLongestBlock = size_t{1} << 20;

size_t at(int rank) { return static_cast<size_t>(rank); }

}  // namespace

struct MpiEndpoint::Batch {
  std::vector<MPI_Request> requests;
  std::vector<MPI_Status> statuses;
  std::vector<int> expected;  // bytes; -1 for a send
};

std::shared_ptr<Endpoint> MpiEndpoint::adopt(std::shared_ptr<MpiContext> context, MPI_Comm comm) {
  int rank = 0, size = 0;
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return std::make_shared<MpiEndpoint>(std::move(context), comm, rank, size);
}

MpiEndpoint::MpiEndpoint(std::shared_ptr<MpiContext> context, MPI_Comm comm, int rank, int size)
    : Endpoint(rank, size), context_(std::move(context)), comm_(comm), inputs_(at(size)) {}

MpiEndpoint::~MpiEndpoint() {
  // After a failure some ranks never come here, and messages may still be in flight.
  if (context_->usable()) MPI_Comm_free(&comm_);
}

void MpiEndpoint::send(Batch& batch, const std::byte* data, size_t bytes, int peer, Tag tag) {
  const size_t longest = message_bytes(bytes);
  for (size_t begin = 0; begin < bytes; begin += longest) {
    const size_t length = std::min(longest, bytes - begin);
    check_mpi(MPI_Isend(data + begin, static_cast<int>(length), MPI_BYTE, peer,
                        static_cast<int>(tag), comm_, &batch.requests.emplace_back()),
              "MPI_Isend");
    batch.expected.push_back(-1);
  }
}

void MpiEndpoint::receive(Batch& batch, std::byte* data, size_t bytes, int peer, Tag tag) {
  const size_t longest = message_bytes(bytes);
  for (size_t begin = 0; begin < bytes; begin += longest) {
    const size_t length = std::min(longest, bytes - begin);
    check_mpi(MPI_Irecv(data + begin, static_cast<int>(length), MPI_BYTE, peer,
                        static_cast<int>(tag), comm_, &batch.requests.emplace_back()),
              "MPI_Irecv");
    batch.expected.push_back(static_cast<int>(length));
  }
}

void MpiEndpoint::finish(Batch& batch) {
  batch.statuses.resize(batch.requests.size());
  context_->wait(batch.requests, batch.statuses, *this);
  for (size_t i = 0; i < batch.expected.size(); ++i) {
    if (batch.expected[i] < 0) continue;
    int bytes = 0;
    MPI_Get_count(&batch.statuses[i], MPI_BYTE, &bytes);
    VP_CHECK(bytes == batch.expected[i],
             "{}: rank {} of this communicator sent {} bytes, {} were expected", label(),
             batch.statuses[i].MPI_SOURCE, bytes, batch.expected[i]);
  }
  batch.requests.clear();
  batch.expected.clear();
}

void MpiEndpoint::reduce_whole(const TensorView& t, Reduction op) {
  Batch batch;
  auto* data = static_cast<std::byte*>(t.data);
  const size_t stride = (t.bytes() + 63) / 64 * 64;
  if (scratch_.size() < stride * at(size())) scratch_.resize(stride * at(size()));
  for (int step = 1; step < size(); ++step) {
    const int peer = peer_before(step);
    receive(batch, scratch_.data() + stride * at(peer), t.bytes(), peer, Tag::whole);
  }
  for (int step = 1; step < size(); ++step)
    send(batch, data, t.bytes(), peer_after(step), Tag::whole);
  finish(batch);
  for (int peer = 0; peer < size(); ++peer)
    inputs_[at(peer)] = peer == rank() ? data : scratch_.data() + stride * at(peer);
  reduce_in_order(inputs_, data, t.elements(), t.dtype, op);
}

void MpiEndpoint::reduce_pieces(const std::byte* data, std::byte* out, DType dtype, Reduction op,
                                const std::function<Range(int rank)>& piece_at) {
  const size_t item = bytes_of(dtype);
  const size_t block_bytes =
      std::clamp(kScratchBytes / (2 * at(size())), kShortestBlock, kLongestBlock);
  const auto block = static_cast<int64_t>(block_bytes / item);
  if (scratch_.size() < 2 * block_bytes * at(size())) scratch_.resize(2 * block_bytes * at(size()));
  const auto part_of = [&](int peer, int64_t index) {
    const Range piece = piece_at(peer);
    return Range{std::min(piece.end, piece.begin + index * block),
                 std::min(piece.end, piece.begin + (index + 1) * block)};
  };
  const auto slot = [&](int peer, int64_t index) {
    return scratch_.data() + block_bytes * (at(peer) + at(size()) * (at(int(index % 2))));
  };
  int64_t longest = 0;
  for (int peer = 0; peer < size(); ++peer) longest = std::max(longest, piece_at(peer).length());
  const int64_t blocks = (longest + block - 1) / block;
  const Range mine = piece_at(rank());

  std::array<Batch, 2> batches;
  const auto start = [&](int64_t index) {
    Batch& batch = batches[at(int(index % 2))];
    const size_t expected = static_cast<size_t>(part_of(rank(), index).length()) * item;
    for (int step = 1; step < size(); ++step) {
      const int peer = peer_before(step);
      receive(batch, slot(peer, index), expected, peer, Tag::piece);
    }
    for (int step = 1; step < size(); ++step) {
      const int peer = peer_after(step);
      const Range part = part_of(peer, index);
      send(batch, data + static_cast<size_t>(part.begin) * item,
           static_cast<size_t>(part.length()) * item, peer, Tag::piece);
    }
  };
  if (blocks > 0) start(0);
  for (int64_t index = 0; index < blocks; ++index) {
    if (index + 1 < blocks) start(index + 1);
    finish(batches[at(int(index % 2))]);
    const Range part = part_of(rank(), index);
    for (int peer = 0; peer < size(); ++peer) {
      inputs_[at(peer)] =
          peer == rank() ? data + static_cast<size_t>(part.begin) * item : slot(peer, index);
    }
    reduce_in_order(inputs_, out + static_cast<size_t>(part.begin - mine.begin) * item,
                    part.length(), dtype, op);
  }
}

void MpiEndpoint::all_reduce(const TensorView& t, Reduction op) {
  if (t.bytes() <= kWholeBytes) return reduce_whole(t, op);
  const auto piece_at = [&](int peer) { return piece_of(t.elements(), size(), peer); };
  auto* data = static_cast<std::byte*>(t.data);
  const size_t item = bytes_of(t.dtype);
  const auto begin_of = [&](int peer) {
    return data + static_cast<size_t>(piece_at(peer).begin) * item;
  };
  const auto bytes_at = [&](int peer) {
    return static_cast<size_t>(piece_at(peer).length()) * item;
  };
  reduce_pieces(data, begin_of(rank()), t.dtype, op, piece_at);
  Batch batch;
  for (int step = 1; step < size(); ++step) {
    const int peer = peer_before(step);
    receive(batch, begin_of(peer), bytes_at(peer), peer, Tag::gather);
  }
  for (int step = 1; step < size(); ++step)
    send(batch, begin_of(rank()), bytes_at(rank()), peer_after(step), Tag::gather);
  finish(batch);
}

void MpiEndpoint::reduce_scatter(const TensorView& in, const TensorView& out, Reduction op) {
  const int64_t length = out.elements();
  reduce_pieces(static_cast<const std::byte*>(in.data), static_cast<std::byte*>(out.data),
                out.dtype, op, [length](int peer) {
                  return Range{length * peer, length * (peer + 1)};
                });
}

void MpiEndpoint::all_gather(const TensorView& in, const TensorView& out) {
  Batch batch;
  auto* whole = static_cast<std::byte*>(out.data);
  const auto* mine = static_cast<const std::byte*>(in.data);
  for (int step = 1; step < size(); ++step) {
    const int peer = peer_before(step);
    receive(batch, whole + in.bytes() * at(peer), in.bytes(), peer, Tag::gather);
  }
  for (int step = 1; step < size(); ++step)
    send(batch, mine, in.bytes(), peer_after(step), Tag::gather);
  copy_bytes(whole + in.bytes() * at(rank()), mine, in.bytes());
  finish(batch);
}

void MpiEndpoint::broadcast(const TensorView& t, int root) {
  // A binomial tree over the places after root: place p hears from p without its highest bit.
  const int place = (rank() - root + size()) % size();
  auto* data = static_cast<std::byte*>(t.data);
  Batch batch;
  int stride = 1;
  while (stride <= place) stride *= 2;
  if (place > 0) {
    receive(batch, data, t.bytes(), (place - stride / 2 + root) % size(), Tag::broadcast);
    finish(batch);
  }
  for (; place + stride < size(); stride *= 2)
    send(batch, data, t.bytes(), (place + stride + root) % size(), Tag::broadcast);
  finish(batch);
}

void MpiEndpoint::exchange(std::span<const Transfer> transfers) {
  Batch batch;
  const auto post = [&](Direction direction) {
    for (const Transfer& transfer : transfers) {
      if (transfer.direction != direction) continue;
      auto* data = static_cast<std::byte*>(transfer.tensor.data);
      if (direction == Direction::receive)
        receive(batch, data, transfer.tensor.bytes(), transfer.peer, Tag::exchange);
      else send(batch, data, transfer.tensor.bytes(), transfer.peer, Tag::exchange);
    }
  };
  post(Direction::receive);
  post(Direction::send);
  finish(batch);
}

void MpiEndpoint::barrier() {
  // Dissemination: after round k everybody has heard, indirectly, from 2^k others.
  std::byte out{1}, in{0};
  for (int step = 1; step < size(); step *= 2) {
    Batch batch;
    receive(batch, &in, 1, peer_before(step), Tag::barrier);
    send(batch, &out, 1, peer_after(step), Tag::barrier);
    finish(batch);
  }
}

std::vector<std::string> MpiEndpoint::gather_text(const std::string& text) {
  std::vector<int64_t> lengths(at(size()));
  lengths[at(rank())] = static_cast<int64_t>(text.size());
  all_gather({&lengths[at(rank())], DType::i64, {1}}, {lengths.data(), DType::i64, {size()}});
  std::vector<std::string> texts(at(size()));
  texts[at(rank())] = text;
  Batch batch;
  for (int step = 1; step < size(); ++step) {
    std::string& theirs = texts[at(peer_before(step))];
    theirs.resize(static_cast<size_t>(lengths[at(peer_before(step))]));
    receive(batch, reinterpret_cast<std::byte*>(theirs.data()), theirs.size(), peer_before(step),
            Tag::text);
  }
  for (int step = 1; step < size(); ++step)
    send(batch, reinterpret_cast<const std::byte*>(text.data()), text.size(), peer_after(step),
         Tag::text);
  finish(batch);
  return texts;
}

std::shared_ptr<Endpoint> MpiEndpoint::split(int color, int key) {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &part), "MPI_Comm_split");
  return part == MPI_COMM_NULL ? nullptr : adopt(context_, part);
}

}  // namespace voltapile::comm
