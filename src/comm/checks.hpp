// What every backend asks of its arguments, so that a rehearsal refuses what a run would refuse.
#pragma once
#include <span>

#include "voltapile/comm/communicator.hpp"

namespace voltapile::comm {

void check_tensor(const Communicator& c, const char* call, const TensorView& t);
void check_pieces(const Communicator& c, const char* call, const TensorView& whole,
                  const TensorView& piece);
void check_root(const Communicator& c, int root);
void check_transfers(const Communicator& c, std::span<const Transfer> transfers);

}  // namespace voltapile::comm
