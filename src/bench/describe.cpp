#include "voltapile/base/units.hpp"
#include "voltapile/bench/bench.hpp"

namespace voltapile {
namespace {

std::string show_short(double seconds) {
  if (seconds < 1e-3) return format("{:.1f} us", 1e6 * seconds);
  if (seconds < 1) return format("{:.2f} ms", 1e3 * seconds);
  return format("{:.3f} s", seconds);
}

std::string show_rate(double bytes_per_second) {
  return format("{:.1f} GB/s", 1e-9 * bytes_per_second);
}

std::string show_shape(const std::vector<int64_t>& shape) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(std::to_string(extent));
  return join(extents, "x");
}

const char* name_of(Bound bound) {
  switch (bound) {
    case Bound::memory: return "memory";
    case Bound::arithmetic: return "arithmetic";
    case Bound::launch: return "launch";
  }
  return "";
}

void describe_ceilings(const BenchResult& result, std::string& text) {
  const Ceilings& c = result.ceilings;
  const auto row = [&](const char* name, const std::string& value, const char* note) {
    text += format("  {:<28}{:>16}{}{}\n", name, value, *note != '\0' ? "  " : "", note);
  };
  text += "\nCeilings\n";
  row("copies on the device", show_rate(c.copy_bytes_per_second), "read + written");
  row("host to device", show_rate(c.host_to_device_bytes_per_second), "");
  row("device to host", show_rate(c.device_to_host_bytes_per_second), "");
  row("matrix products", show_flops(c.product_flops_per_second) + "/s", "");
  row("a kernel of 8 elements", show_short(c.launch_seconds), "");
  if (c.disk_bytes_per_second > 0)
    row("disk", show_rate(c.disk_bytes_per_second), "written by each rank, all at once");
  row("driver and libraries hold", show_bytes(static_cast<double>(result.overhead_bytes)), "");
}

void describe_communication(const Communication& c, std::string& text) {
  if (c.ranks == 1) return;
  text += format(
      "\nCommunication of {} ranks                    median         rate   lowest to "
      "highest\n",
      c.ranks);
  const auto rows = [&](const char* name, const std::vector<CommunicationFigure>& figures) {
    for (const CommunicationFigure& f : figures) {
      text += format("  {:<16}{:>14}{:>19}{:>13}   {} to {}\n", name,
                     show_bytes(static_cast<double>(f.bytes)), show_short(f.time.seconds),
                     show_rate(f.bytes_per_second), show_short(f.time.lowest),
                     show_short(f.time.highest));
    }
  };
  rows("all-reduce", c.all_reduce);
  rows("point to point", c.point_to_point);
}

// Half of what lies between the extremes, of the median.
std::string show_spread(const Timing& time) {
  const double percent = 50 * (time.highest - time.lowest) / time.seconds;
  return percent > 99 ? ">99 %" : format("{:.0f} %", percent);
}

void describe_kernels(const std::vector<KernelFigure>& kernels, std::string& text) {
  text += format("\n{:<28}{:>16}{:>10}{:>6}{:>9}{:>12}  {:<12}{}\n", "Kernels", "shape", "median",
                 "+-", "moved", "work", "bound", "share");
  for (const KernelFigure& k : kernels) {
    text += format("  {:<26}{:>16}{:>10}{:>6}{:>9}{:>12}  {:<11}{:>6}\n", k.name,
                   show_shape(k.shape), show_short(k.time.seconds), show_spread(k.time),
                   show_bytes(k.bytes), k.flops > 0 ? show_flops(k.flops) : "", name_of(k.bound),
                   k.share > 9.99 ? ">999 %" : format("{:.0f} %", 100 * k.share));
  }
  text += "  share: the least time by that bound, of the median; above 100 % by a cache's help\n";
}

}  // namespace

std::string describe(const BenchResult& result) {
  std::string text = format("{}, {}\n", result.device, voltapile::name_of(result.type));
  describe_ceilings(result, text);
  describe_communication(result.communication, text);
  describe_kernels(result.kernels, text);
  for (const EndToEnd& e : result.end_to_end) {
    text +=
        format("\nTraining {}\n  {} a step ({} to {}), {:.1f} samples/s\n", e.model,
               show_short(e.step.seconds), show_short(e.step.lowest), show_short(e.step.highest),
               static_cast<double>(e.samples_per_step) / e.step.seconds);
  }
  return text;
}

}  // namespace voltapile
