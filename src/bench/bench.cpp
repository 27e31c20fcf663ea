#include "voltapile/bench/bench.hpp"

#include <algorithm>
#include <exception>
#include <set>
#include <thread>

#include "voltapile/base/host.hpp"
#include "voltapile/device/dry.hpp"
#include "voltapile/train/trainer.hpp"

#include "workbench.hpp"

namespace voltapile {

namespace bench {
namespace {

// Ranks on this machine: how many, and how many of them come before this one.
struct Neighbours {
  int count = 0, before = 0;
};
Neighbours neighbours_of(Communicator& world) {
  Neighbours found;
  int rank = 0;
  for (const std::string& host : world.gather_text(host_name())) {
    if (host == host_name()) {
      ++found.count;
      if (rank < world.rank()) ++found.before;
    }
    ++rank;
  }
  return found;
}

std::unique_ptr<Device> make_device(const BenchOptions& options, const Neighbours& here) {
  if (options.device == DeviceKind::cuda)
    return make_cuda_device({.local_rank = here.before,
                             .memory_limit_bytes = {},
                             .working = options.type,
                             .tuning_file = {}});
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return make_cpu_device(std::max(1, cores / here.count));
}

std::vector<Prepare> all_cases() {
  std::vector<Prepare> all;
  for (const auto& family : {product_cases(), block_cases(), ends_cases(), optimizer_cases()})
    all.insert(all.end(), family.begin(), family.end());
  return all;
}

// Name, shape, bytes and FLOPs of a case, by running it on a dry device.
KernelFigure count(const Prepare& prepare, const BenchOptions& options, const Sizes& sizes) {
  Lists lists;
  const std::unique_ptr<Device> dry = make_dry_device();
  Workbench bench(*dry, options.type, sizes, lists, Workbench::Contents::none);
  const Case counted = prepare(bench);
  const std::map<std::string, KernelCount>& kernels = dry_counters(*dry).kernels;
  const auto now = [&] {
    const auto entry = kernels.find(counted.name);
    return entry == kernels.end() ? KernelCount{} : entry->second;
  };
  const KernelCount before = now();
  counted.call();
  const KernelCount after = now();
  VP_CHECK(after.calls == before.calls + 1, "a case called {} calls it {} times", counted.name,
           after.calls - before.calls);
  KernelFigure figure;
  figure.name = counted.name;
  figure.shape = counted.shape;
  figure.bytes = after.bytes - before.bytes;
  figure.flops = after.flops - before.flops;
  return figure;
}

void judge(KernelFigure& figure, const Ceilings& ceilings) {
  const double memory = figure.bytes / ceilings.copy_bytes_per_second;
  const double arithmetic = figure.flops / ceilings.product_flops_per_second;
  const double least = std::max({memory, arithmetic, ceilings.launch_seconds});
  figure.bound = least == memory       ? Bound::memory
                 : least == arithmetic ? Bound::arithmetic
                                       : Bound::launch;
  figure.share = least / figure.time.seconds;
}

void check_names(const std::vector<std::string>& only, const std::vector<KernelFigure>& known) {
  std::set<std::string> names;
  for (const KernelFigure& figure : known) names.insert(figure.name);
  for (const std::string& name : only)
    if (!names.contains(name))
      throw Error(ExitCode::bad_input, format("--only {}: no such kernel; there are {}", name,
                                              join({names.begin(), names.end()}, ", ")));
}

BenchResult run(const BenchOptions& options, Communicator& world) {
  const Sizes sizes = sizes_of(options);
  const std::vector<Prepare> cases = all_cases();
  std::vector<KernelFigure> counted;
  agree(world, [&] {
    for (const Prepare& prepare : cases) counted.push_back(count(prepare, options, sizes));
    check_names(options.only, counted);
  });
  BenchResult result;
  result.type = options.type;
  {
    Lists lists;  // the device refers to it
    std::unique_ptr<Device> device;
    const Neighbours here = neighbours_of(world);
    agree(world, [&] { device = make_device(options, here); });
    result.device = device->describe();
    const auto fresh = [&] {
      return Workbench(*device, options.type, sizes, lists, Workbench::Contents::random);
    };
    {
      Workbench bench = fresh();
      result.ceilings = measure_ceilings(bench);
    }
    {
      Workbench bench = fresh();
      result.communication = measure_communication(bench, world, options);
      if (!options.disk.empty())
        result.ceilings.disk_bytes_per_second = measure_disk(world, options);
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      KernelFigure& figure = counted[i];
      const auto& only = options.only;
      if (!only.empty() && std::find(only.begin(), only.end(), figure.name) == only.end()) continue;
      Workbench bench = fresh();
      const Case prepared = cases[i](bench);
      figure.time = bench.time(prepared.call);
      judge(figure, result.ceilings);
      result.kernels.push_back(figure);
    }
    result.overhead_bytes = device->overhead_bytes();
  }
  if (options.only.empty()) result.end_to_end.push_back(measure_training(options, world));
  return result;
}

}  // namespace
}  // namespace bench

BenchResult run_bench(const BenchOptions& options, std::unique_ptr<Communicator> world) {
  // A communicator that goes while an exception flies tells the other ranks of a failure; an error
  // that all ranks share is none.
  std::exception_ptr shared;
  try {
    return bench::run(options, *world);
  } catch (const SharedError&) { shared = std::current_exception(); }
  world.reset();
  std::rethrow_exception(shared);
}

}  // namespace voltapile
