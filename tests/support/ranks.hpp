// Runs a test's body on ranks: as threads of this process, or, when the test program was started by
// mpirun, as the processes of that job. Programs that use it take `ranks_dep` (it brings main())
// and are listed twice: in the unit suite, and in tests/parallel/meson.build with the process
// counts.
#pragma once
#include <functional>
#include <memory>

#include "voltapile/comm/communicator.hpp"

namespace voltapile::testing {

bool under_mpirun();
// The largest n that on_ranks takes: the processes of the job, or `threads`.
int most_ranks(int threads);
// Every process of the job must come here. Under mpirun the processes from n on only wait; an
// exception in a body ends the job, with threads it is rethrown.
void on_ranks(int n, const std::function<void(std::unique_ptr<Communicator>)>& body);

}  // namespace voltapile::testing
