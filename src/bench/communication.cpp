#include <algorithm>

#include "voltapile/comm/transport.hpp"

#include "workbench.hpp"

namespace voltapile::bench {
namespace {

constexpr int kCalls = 5, kRepetitions = 7;

// The slowest rank's, on every rank.
Timing slowest(Communicator& world, const Timing& mine) {
  Timing worst;
  for (const std::string& text :
       world.gather_text(format("{} {} {}", mine.seconds, mine.lowest, mine.highest))) {
    size_t first = 0, second = 0;
    const double seconds = std::stod(text, &first);
    const double lowest = std::stod(text.substr(first), &second);
    const double highest = std::stod(text.substr(first + second));
    if (seconds > worst.seconds) worst = {seconds, lowest, highest};
  }
  return worst;
}

CommunicationFigure figure_of(Communicator& world, const Timing& mine, size_t bytes) {
  const Timing time = slowest(world, mine);
  return {bytes, time, static_cast<double>(bytes) / time.seconds};
}

CommunicationFigure all_reduce(Workbench& bench, Communicator& world, Communicator& all,
                               size_t bytes) {
  const DType type = accumulate_type(bench.type());
  const auto elements = static_cast<int64_t>(bytes / bytes_of(type));
  // Zeros stay finite however often they are summed.
  const TensorView t = bench.filled(type, {elements}, 0);
  Stream& stream = bench.device().stream(Lane::dp);
  world.barrier();
  const Timing mine = bench.time_fixed([&] { all.all_reduce(t, Reduction::sum, stream); }, Lane::dp,
                                       kCalls, kRepetitions);
  return figure_of(world, mine, bytes);
}

// From every even rank to the next one.
CommunicationFigure point_to_point(Workbench& bench, Communicator& world, Communicator* pair,
                                   size_t bytes) {
  const auto elements = static_cast<int64_t>(bytes / bytes_of(bench.type()));
  const TensorView t = bench.working({elements});
  world.barrier();
  Timing mine;
  if (pair != nullptr) {
    const bool sends = pair->rank() == 0;
    const Lane lane = sends ? Lane::pipe_out : Lane::pipe_in;
    const Transfer transfer{sends ? Direction::send : Direction::receive, sends ? 1 : 0, t};
    Stream& stream = bench.device().stream(lane);
    mine = bench.time_fixed(
        [&] {
          pair->exchange({&transfer, 1}, stream);
        },
        lane, kCalls, kRepetitions);
  }
  return figure_of(world, mine, bytes);
}

}  // namespace

Communication measure_communication(Workbench& bench, Communicator& world,
                                    const BenchOptions& options) {
  Communication found{.ranks = world.size()};
  if (world.size() == 1) return found;
  Device& device = bench.device();
  const auto all = on_device(world.split(0, world.rank()), device, Transport::automatic);
  // A rank without a partner makes a world of one, which says nothing.
  auto two = on_device(world.split(world.rank() / 2, world.rank()), device, Transport::automatic);
  Communicator* const pair = two->size() == 2 ? two.get() : nullptr;
  const size_t most = options.quick                       ? size_t{1} << 20
                      : options.device == DeviceKind::cpu ? size_t{1} << 24
                                                          : size_t{1} << 28;
  for (size_t bytes = size_t{1} << 16; bytes <= most; bytes <<= 4) {
    found.all_reduce.push_back(all_reduce(bench, world, *all, bytes));
    found.point_to_point.push_back(point_to_point(bench, world, pair, bytes));
  }
  device.wait_until_idle();
  return found;
}

}  // namespace voltapile::bench
