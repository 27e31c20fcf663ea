// SIGTERM, SIGINT and SIGUSR1 ask for a checkpoint and an early end; a second SIGINT ends at once.
#pragma once

namespace voltapile {

void catch_stop_signals();
bool stop_requested();

}  // namespace voltapile
