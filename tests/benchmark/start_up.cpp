// How long a run of 64 ranks (threads of one process) takes from its start to its first step:
//   ninja -C build tests/benchmark/start_up && build/tests/benchmark/start_up [rounds]
// 4 pipeline ranks x 4 data ranks x 4 tensor ranks train a small model on the CPU.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "voltapile/base/clock.hpp"
#include "voltapile/comm/communicator.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/plan/plan.hpp"
#include "voltapile/train/trainer.hpp"

namespace {

constexpr const char* kDeck = R"(
[run]
name = "start_up"
steps = 1
threads = 1
[model]
image = 16
channels = 1
patch = 4
dim = 64
depth = 8
heads = 8
classes = 10
[parallel]
pipeline = 4
data = 4
tensor = 4
[batch]
global = 64
micro = 2
[data]
format = "synthetic"
synthetic_train = 1024
mean = [0.5]
std = [0.5]
[checkpoint]
at_end = false
)";

// Seconds until the first step is done.
double start(const std::filesystem::path& folder) {
  using namespace voltapile;
  const double began = now_seconds();
  double first = 0;
  const Deck deck = parse_deck(kDeck, "start_up.toml", {"run.dir=\"" + folder.string() + "\""});
  spawn_ranks(ranks_of(deck), [&](std::unique_ptr<Communicator> world) {
    TrainOptions options{.fresh = true, .quiet = true};
    if (world->rank() == 0)
      options.on_step = [&](const TrainRecord&) { first = now_seconds() - began; };
    train([&] { return deck; }, std::move(world), options);
  });
  return first;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("voltapile_start_up_" + std::to_string(getpid()));
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) seconds.push_back(start(folder));
  std::filesystem::remove_all(folder);
  std::sort(seconds.begin(), seconds.end());
  std::printf(
      "64 thread ranks on %u cores: first step done after %.2f s (%.2f to %.2f, %d rounds)\n",
      std::thread::hardware_concurrency(), seconds[seconds.size() / 2], seconds.front(),
      seconds.back(), rounds);
  return 0;
}
