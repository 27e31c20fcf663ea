#include "voltapile/train/stop_request.hpp"

#include <atomic>
#include <csignal>
#include <initializer_list>

namespace voltapile {

namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_stop_signal(int number) {
  const bool again = requested.exchange(true);
  if (again && number == SIGINT) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

}  // namespace

void catch_stop_signals() {
  for (int number : {SIGTERM, SIGINT, SIGUSR1}) std::signal(number, on_stop_signal);
  std::signal(SIGXFSZ, SIG_IGN);  // such a write fails then, and a message can name the file
}

bool stop_requested() { return requested.load(std::memory_order_relaxed); }

}  // namespace voltapile
