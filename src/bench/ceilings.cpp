#include <algorithm>

#include "workbench.hpp"

namespace voltapile::bench {
namespace {

double copy_rate(Workbench& bench) {
  const auto bytes = static_cast<int64_t>(bench.sizes().copy_bytes);
  const TensorView from = bench.bytes({bytes}), to = bench.bytes({bytes});
  const Timing timing =
      bench.time([&] { bench.device().copy(to.data, from.data, from.bytes(), bench.stream()); },
                 Workbench::Issue::plain);
  return 2 * static_cast<double>(bytes) / timing.seconds;
}

double transfer_rate(Workbench& bench, Lane lane) {
  const size_t bytes = bench.sizes().copy_bytes / 4;
  const TensorView there = bench.bytes({static_cast<int64_t>(bytes)});
  void* here = bench.host_buffer(bytes).data();
  const bool to_device = lane == Lane::h2d;
  const Timing timing = bench.time(
      [&] {
        bench.device().copy(to_device ? there.data : here, to_device ? here : there.data, bytes,
                            bench.device().stream(lane));
      },
      Workbench::Issue::plain, lane);
  return static_cast<double>(bytes) / timing.seconds;
}

double product_rate(Workbench& bench, int64_t rows, int64_t in, int64_t out) {
  const TensorView x = bench.working({rows, in}), w = bench.working({out, in}),
                   y = bench.working({rows, out});
  const Timing timing = bench.time([&] { bench.kernels().linear(x, w, {}, y, bench.stream()); });
  return 2.0 * static_cast<double>(rows * in * out) / timing.seconds;
}

}  // namespace

Ceilings measure_ceilings(Workbench& bench) {
  Ceilings found;
  found.copy_bytes_per_second = copy_rate(bench);
  found.host_to_device_bytes_per_second = transfer_rate(bench, Lane::h2d);
  found.device_to_host_bytes_per_second = transfer_rate(bench, Lane::d2h);
  const int64_t n = bench.sizes().product;
  for (const int64_t rows : {n, 2 * n})
    for (const int64_t in : {n / 2, n})
      found.product_flops_per_second =
          std::max(found.product_flops_per_second, product_rate(bench, rows, in, n));
  const TensorView small = bench.working({8}), sum = bench.working({8});
  found.launch_seconds =
      bench.time([&] { bench.kernels().add(small, small, sum, bench.stream()); }).seconds;
  return found;
}

}  // namespace voltapile::bench
