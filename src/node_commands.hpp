// What the command line knows of the node and the launcher that it runs under.
#pragma once
#include <vector>

#include "voltapile/base/error.hpp"
#include "voltapile/comm/mpi.hpp"
#include "voltapile/watch/fingerprint.hpp"
#include "voltapile/watch/watch.hpp"

namespace voltapile {

// Prints what the doctor found; `failure` where it is a problem.
ExitCode show_node();

// How a watch of this job prints and ends it.
WatchOptions watch_options(MpiSession& session);

// Of this rank, for the comparison at the start.
std::vector<Fact> launcher_facts();

}  // namespace voltapile
