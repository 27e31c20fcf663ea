// `voltapile bench`: what this machine can do at most, and how near each kernel comes to it. Works
// on every device, through the seams alone.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "voltapile/comm/communicator.hpp"
#include "voltapile/deck/deck.hpp"

namespace voltapile {

struct BenchOptions {
  DeviceKind device = DeviceKind::cpu;
  DType type = DType::f32;        // f16, bf16 or f32
  bool quick = false;             // small shapes, few repetitions: whether it works, not how fast
  std::string disk;               // a folder whose disk is measured; empty: none is
  std::vector<std::string> only;  // names of kernels to time; empty: all, and the end to end part
};

// Of one call: the median of its repetitions, and the extremes.
struct Timing {
  double seconds = 0, lowest = 0, highest = 0;
};

struct Ceilings {
  double copy_bytes_per_second = 0;  // within the device's memory, read + written
  double host_to_device_bytes_per_second = 0, device_to_host_bytes_per_second = 0;  // pinned
  double product_flops_per_second = 0;  // best of a few large matrix products
  double launch_seconds = 0;            // a kernel of 8 elements, among others
  // Written past the page cache by every rank at once, the slowest's; 0: not measured.
  double disk_bytes_per_second = 0;
};

// Slowest rank's.
struct CommunicationFigure {
  size_t bytes = 0;  // of the tensor
  Timing time;
  double bytes_per_second = 0;  // bytes / median: what a caller sees
};
struct Communication {
  int ranks = 1;
  std::vector<CommunicationFigure> all_reduce, point_to_point;  // empty on one rank
};

// What keeps a kernel from being faster: its bytes at the copy rate, its FLOPs at the product rate,
// or a launch; whichever takes longest.
enum class Bound { memory, arithmetic, launch };
struct KernelFigure {
  std::string name;            // of the operation in kernels.hpp
  std::vector<int64_t> shape;  // of products: rows, in, out; else of the first operand
  Timing time;
  double bytes = 0, flops = 0;  // as the dry device counts them
  Bound bound = Bound::memory;
  double share = 0;  // least time by that bound / median
};

struct EndToEnd {
  std::string model;
  int64_t samples_per_step = 0;
  Timing step;  // whole steps of `voltapile train`, on the host's clock
};

struct BenchResult {
  std::string device;
  DType type = DType::f32;
  Ceilings ceilings;
  size_t overhead_bytes = 0;  // Device::overhead_bytes, after all that was measured
  Communication communication;
  std::vector<KernelFigure> kernels;
  std::vector<EndToEnd> end_to_end;  // none where only some kernels were asked for
};

// Collective. Every rank measures; the figures are this rank's but for communication. Seconds are
// the device's own clock (Device::mark), so launching from the host is left out. Error(bad_input)
// for a name in `only` that is no kernel's.
BenchResult run_bench(const BenchOptions& options, std::unique_ptr<Communicator> world);

// What the command prints; no line above 100 columns.
std::string describe(const BenchResult& result);
// The file that --write writes: TOML, with the keys that docs/FILES.md lists.
std::string hardware_file(const BenchResult& result);

}  // namespace voltapile
