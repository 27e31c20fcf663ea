#include <memory>
#include <string>
#include <type_traits>

#include <hwloc.h>
#include <sched.h>

#include "voltapile/base/error.hpp"
#include "voltapile/device/host/memory.hpp"

namespace voltapile::host {
namespace {

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  // The system writes as many bits as it has cpus; more than CPU_SETSIZE are asked for in vain.
  cpu_set_t set;
  CPU_ZERO(&set);
  VP_CHECK(sched_getaffinity(0, sizeof(set), &set) == 0, "the cpus of this process are not known");
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  return cpus;
}

struct Release {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, Release>;

// Null where the machine cannot be read.
Topology read_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  Topology topology(raw);
  // PCI devices alone: to name the others, hwloc would wake up drivers, CUDA's among them. And from
  // sysfs: hwloc's other way is a plug-in that is not always installed, and loses memory.
  if (hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "pci") != 0 ||
      hwloc_topology_set_type_filter(raw, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL) != 0 ||
      hwloc_topology_set_type_filter(raw, HWLOC_OBJ_OS_DEVICE, HWLOC_TYPE_FILTER_KEEP_NONE) != 0 ||
      hwloc_topology_load(raw) != 0)
    return nullptr;
  return topology;
}

}  // namespace

std::vector<int> cpus_near(std::string_view pci_address) {
  const std::vector<int> allowed = allowed_cpus();
  if (pci_address.empty()) return allowed;
  const Topology topology = read_topology();
  if (!topology) return allowed;
  const hwloc_obj_t device =
      hwloc_get_pcidev_by_busidstring(topology.get(), std::string(pci_address).c_str());
  if (!device) return allowed;
  const hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology.get(), device);
  if (!place || !place->cpuset) return allowed;
  std::vector<int> near;
  for (const int cpu : allowed)
    if (hwloc_bitmap_isset(place->cpuset, static_cast<unsigned>(cpu))) near.push_back(cpu);
  return near.empty() ? allowed : near;
}

}  // namespace voltapile::host
