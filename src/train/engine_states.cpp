// What the engine's lanes are at, read from the clocks that their instructions mark.
#include <algorithm>

#include "engine_impl.hpp"

namespace voltapile {

namespace {

std::string text_of(const Instruction& instruction) {
  std::string text(name_of(instruction.op));
  if (instruction.chunk < 0) return text;
  if (instruction.micro < 0) return format("{}(chunk {})", text, instruction.chunk);
  return format("{}(chunk {}, micro {})", text, instruction.chunk, instruction.micro);
}

bool communicates(Op op) {
  switch (op) {
    case Op::send_activation:
    case Op::receive_activation:
    case Op::send_gradient:
    case Op::receive_gradient:
    case Op::gather_weights:
    case Op::reduce_gradients:
    case Op::norm: return true;
    default: return false;
  }
}

}  // namespace

// The step that had these clocks before has ended: kRing - 1 steps are in flight at most.
void Engine::Impl::show_next_step() {
  if (!shows_lanes) return;
  const auto ring = static_cast<size_t>(issued % kRing);
  for (size_t i = 0; i < program.size(); ++i) {
    Clocked::clear(clock_of(i, ring).begin);
    Clocked::clear(clock_of(i, ring).end);
  }
  end_shown.store(issued + 1, std::memory_order_release);
}

void Engine::keep_lane_states() { impl_->shows_lanes = true; }

std::vector<LaneState> Engine::lane_states() const {
  Impl& impl = *impl_;
  const int64_t end = impl.end_shown.load(std::memory_order_acquire);
  const int64_t begin = std::max(impl.first_shown.load(), end - (kRing - 1));
  std::vector<LaneState> states;
  std::array<bool, kLaneCount> found{};
  for (int64_t step = begin; step < end; ++step) {
    const auto ring = static_cast<size_t>(step % kRing);
    for (size_t i = 0; i < impl.program.size(); ++i) {
      const Instruction& instruction = impl.program[i].instruction;
      bool& known = found[static_cast<size_t>(instruction.lane)];
      Clocked& clock = impl.clock_of(i, ring);
      if (known || Clocked::is_marked(clock.end)) continue;
      known = true;
      states.push_back({.lane = std::string(name_of(instruction.lane)),
                        .what = text_of(instruction),
                        .step = step + 1,
                        .begun = Clocked::is_marked(clock.begin),
                        .for_others = communicates(instruction.op)});
    }
  }
  return states;
}

}  // namespace voltapile
