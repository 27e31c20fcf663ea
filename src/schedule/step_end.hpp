// How a step ends: gradients leave, the norm is taken, the optimizer updates, new weights come
// back.
#pragma once
#include "voltapile/schedule/schedule.hpp"

namespace voltapile {

// One rank's training program with its chunks' gradients reduced as soon as they are whole, and
// updates behind the norm; or, with shape.early_updates, as soon as a chunk's gradients are there.
Program with_step_end(const Program& program, const ScheduleShape& shape,
                      const LowerOptions& options);

}  // namespace voltapile
