// Puts the values of a program into slots.
#pragma once
#include <functional>

#include "voltapile/plan/plan.hpp"

namespace voltapile {

struct BufferRules {
  bool training = true;
  std::function<Home(Value)> home_of;
  std::function<Value(Value)> stored_in;  // the value itself, or whose slots it has
};
// `bytes` gives the size of (value, chunk). Persistent values get a slot each for the whole run,
// the others share by liveness in program order. A value that lives several times in a step has one
// slot for all its lives.
BufferPlan plan_buffers(const Program& program, int rank, const ScheduleShape& shape,
                        const BufferRules& rules,
                        const std::function<size_t(Value, int chunk)>& bytes);

// Gives both the larger of their slots, so that they fit the same memory.
void share_slots(BufferPlan& a, BufferPlan& b);

}  // namespace voltapile
