#include "voltapile/base/version.hpp"
#include "voltapile/bench/bench.hpp"

namespace voltapile {
namespace {

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

// A TOML float, which needs a point or an exponent.
std::string number(double value) { return format("{:.4e}", value); }

void add(std::string& text, std::string_view key, const std::string& value) {
  text += format("{} = {}\n", key, value);
}

void add_timing(std::string& text, const Timing& time) {
  add(text, "seconds", number(time.seconds));
  add(text, "lowest_seconds", number(time.lowest));
  add(text, "highest_seconds", number(time.highest));
}

void add_communication(std::string& text, std::string_view name,
                       const std::vector<CommunicationFigure>& figures) {
  for (const CommunicationFigure& f : figures) {
    text += format("\n[[communication]]\n");
    add(text, "name", in_quotes(name));
    add(text, "bytes", std::to_string(f.bytes));
    add_timing(text, f.time);
    add(text, "bytes_per_second", number(f.bytes_per_second));
  }
}

void add_kernel(std::string& text, const KernelFigure& k) {
  std::vector<std::string> extents;
  for (const int64_t extent : k.shape) extents.push_back(std::to_string(extent));
  text += "\n[[kernels]]\n";
  add(text, "name", in_quotes(k.name));
  add(text, "shape", format("[{}]", join(extents, ", ")));
  add_timing(text, k.time);
  add(text, "bytes", number(k.bytes));
  add(text, "flops", number(k.flops));
  const char* const bounds[] = {"memory", "arithmetic", "launch"};
  add(text, "bound", in_quotes(bounds[static_cast<size_t>(k.bound)]));
  add(text, "share", number(k.share));
}

}  // namespace

std::string hardware_file(const BenchResult& result) {
  std::string text =
      "# Measured by `voltapile bench`. Times are medians; docs/FILES.md lists the "
      "keys.\n\n[hardware]\n";
  add(text, "device", in_quotes(result.device));
  add(text, "ranks", std::to_string(result.communication.ranks));
  add(text, "type", in_quotes(name_of(result.type)));
  add(text, "version", in_quotes(kVersion));
  add(text, "overhead_bytes", std::to_string(result.overhead_bytes));
  const Ceilings& c = result.ceilings;
  text += "\n[ceilings]\n";
  add(text, "copy_bytes_per_second", number(c.copy_bytes_per_second));
  add(text, "host_to_device_bytes_per_second", number(c.host_to_device_bytes_per_second));
  add(text, "device_to_host_bytes_per_second", number(c.device_to_host_bytes_per_second));
  add(text, "product_flops_per_second", number(c.product_flops_per_second));
  add(text, "launch_seconds", number(c.launch_seconds));
  if (c.disk_bytes_per_second > 0)
    add(text, "disk_bytes_per_second", number(c.disk_bytes_per_second));
  add_communication(text, "all_reduce", result.communication.all_reduce);
  add_communication(text, "point_to_point", result.communication.point_to_point);
  for (const KernelFigure& k : result.kernels) add_kernel(text, k);
  for (const EndToEnd& e : result.end_to_end) {
    text += "\n[[training]]\n";
    add(text, "model", in_quotes(e.model));
    add(text, "samples_per_step", std::to_string(e.samples_per_step));
    add_timing(text, e.step);
  }
  return text;
}

}  // namespace voltapile
