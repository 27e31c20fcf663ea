// What several sources of the module ask about a shape and an instruction.
#pragma once
#include <string>
#include <vector>

#include "voltapile/schedule/schedule.hpp"

namespace voltapile {

// Throws Error(bad_input) unless every rank holds a chunk and the numbers fit an Instruction.
void check_shape(const ScheduleShape& shape);

std::vector<std::vector<int>> chunks_by_rank(const ChunkTable& chunks);  // ascending
bool is_cyclic(const ChunkTable& chunks);

inline int rank_of(const ChunkTable& chunks, int chunk) {
  return chunks.rank_of[static_cast<size_t>(chunk)];
}
constexpr bool is_backward(Op op) {
  return op == Op::backward || op == Op::backward_input || op == Op::backward_weight;
}
constexpr bool is_send(Op op) { return op == Op::send_activation || op == Op::send_gradient; }
constexpr bool is_receive(Op op) {
  return op == Op::receive_activation || op == Op::receive_gradient;
}
// The rank on the other side of a transfer.
int peer_of(const Instruction& transfer, const ChunkTable& chunks);

inline Instruction compute_instruction(Op op, int chunk, int micro) {
  return {op, Lane::compute, static_cast<int16_t>(chunk), static_cast<int16_t>(micro)};
}
std::string show(const Instruction& instruction);  // "forward(3, 1)", "norm"

}  // namespace voltapile
