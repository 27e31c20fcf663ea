#include "shape.hpp"

#include <limits>

#include "voltapile/base/error.hpp"

namespace voltapile {

void check_shape(const ScheduleShape& shape) {
  constexpr int kMost = std::numeric_limits<int16_t>::max();
  const ChunkTable& chunks = shape.chunks;
  if (shape.micros < 1 || shape.micros > kMost)
    throw Error(ExitCode::bad_input,
                format("a step has 1 to {} micro-batches, not {}", kMost, shape.micros));
  if (chunks.ranks < 1 || chunks.chunks() < chunks.ranks || chunks.chunks() > kMost)
    throw Error(ExitCode::bad_input,
                format("{} chunks on {} pipeline ranks: every rank needs one, and {} is the limit",
                       chunks.chunks(), chunks.ranks, kMost));
  std::vector<int> held(static_cast<size_t>(chunks.ranks));
  for (int chunk = 0; chunk < chunks.chunks(); ++chunk) {
    const int rank = rank_of(chunks, chunk);
    if (rank < 0 || rank >= chunks.ranks)
      throw Error(ExitCode::bad_input, format("chunk {} is placed on pipeline rank {} of {}", chunk,
                                              rank, chunks.ranks));
    ++held[static_cast<size_t>(rank)];
  }
  for (int rank = 0; rank < chunks.ranks; ++rank)
    if (held[static_cast<size_t>(rank)] == 0)
      throw Error(ExitCode::bad_input, format("pipeline rank {} holds no chunk", rank));
}

std::vector<std::vector<int>> chunks_by_rank(const ChunkTable& chunks) {
  std::vector<std::vector<int>> held(static_cast<size_t>(chunks.ranks));
  for (int chunk = 0; chunk < chunks.chunks(); ++chunk)
    held[static_cast<size_t>(rank_of(chunks, chunk))].push_back(chunk);
  return held;
}

bool is_cyclic(const ChunkTable& chunks) {
  for (int chunk = 0; chunk < chunks.chunks(); ++chunk)
    if (rank_of(chunks, chunk) != chunk % chunks.ranks) return false;
  return true;
}

int peer_of(const Instruction& transfer, const ChunkTable& chunks) {
  const bool to_chunk = transfer.op == Op::send_activation || transfer.op == Op::receive_gradient;
  return rank_of(chunks, to_chunk ? transfer.chunk : transfer.chunk - 1);
}

std::string show(const Instruction& instruction) {
  std::string text(name_of(instruction.op));
  if (instruction.chunk >= 0 && instruction.micro >= 0)
    return text + format("({}, {})", instruction.chunk, instruction.micro);
  return instruction.chunk >= 0 ? text + format("({})", instruction.chunk) : text;
}

}  // namespace voltapile
