#include "voltapile/deck/hardware.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "voltapile/base/error.hpp"
#include "voltapile/base/format.hpp"

#include "value.hpp"

namespace voltapile {
namespace {

// A positive number, whole or not.
double number_of(const Entry& entry, const std::string& path) {
  double number = 0;
  if (const auto* whole = std::get_if<int64_t>(&entry.value.data))
    number = static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&entry.value.data)) number = *real;
  if (number > 0 && number < 1e30) return number;
  throw Error(ExitCode::bad_input,
              format("{}:{}:{}: {} = {}: must be a positive number", path, entry.value_place.line,
                     entry.value_place.column, entry.name(), entry.value.shown()));
}

}  // namespace

Hardware load_hardware(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (std::filesystem::is_directory(path) || !file)
    throw Error(ExitCode::bad_input,
                format("{}: no such hardware file: `voltapile bench --write FILE` writes one, and "
                       "input_decks/hardware/ has some",
                       path));
  std::ostringstream text;
  text << file.rdbuf();
  const RawDeck raw = read_toml(text.str());
  if (!raw.faults.empty())
    throw Error(ExitCode::bad_input,
                format("{}:{}:{}: {}", path, raw.faults.front().place.line,
                       raw.faults.front().place.column, raw.faults.front().text));
  Hardware hardware;
  hardware.device = path;
  bool known = false;
  for (const Entry& entry : raw.entries) {
    const std::string name = entry.name();
    const auto take = [&](std::string_view key, double& into) {
      if (name == key) into = number_of(entry, path);
    };
    known = known || entry.section == "ceilings";
    if (name == "hardware.device")
      if (const auto* device = std::get_if<std::string>(&entry.value.data))
        hardware.device = *device;
    const auto* const whole = std::get_if<int64_t>(&entry.value.data);
    const bool nothing = whole != nullptr && *whole == 0;  // a CPU's driver holds none
    if (name == "hardware.overhead_bytes" && !nothing)
      hardware.overhead_bytes = static_cast<size_t>(number_of(entry, path));
    take("ceilings.product_flops_per_second", hardware.product_flops_per_second);
    take("ceilings.copy_bytes_per_second", hardware.copy_bytes_per_second);
    take("ceilings.host_to_device_bytes_per_second", hardware.host_to_device_bytes_per_second);
    take("ceilings.device_to_host_bytes_per_second", hardware.device_to_host_bytes_per_second);
    take("ceilings.host_optimizer_bytes_per_second", hardware.host_bytes_per_second);
    take("ceilings.disk_bytes_per_second", hardware.disk_bytes_per_second);
    hardware.disk_is_measured |= name == "ceilings.disk_bytes_per_second";
  }
  if (!known)
    throw Error(ExitCode::bad_input,
                format("{}:1:1: a hardware file has a section [ceilings]: `voltapile bench --write "
                       "FILE` writes one, and input_decks/hardware/ has some",
                       path));
  return hardware;
}

}  // namespace voltapile
