// Puts the values of a program into slots.
#pragma once
#include <functional>

#include "voltapile/plan/plan.hpp"

namespace voltapile {

struct BufferRules {
  OperandRules operands;
  bool reduced_in_place = false;
};
// `bytes` gives the size of (value, chunk). Persistent values get a slot each for the whole run,
// the others share by liveness in program order.
BufferPlan plan_buffers(const Program& program, int rank, const ScheduleShape& shape,
                        const BufferRules& rules,
                        const std::function<size_t(Value, int chunk)>& bytes);

// Gives both the larger of their slots, so that they fit the same memory.
void share_slots(BufferPlan& a, BufferPlan& b);

}  // namespace voltapile
