// Host memory that many threads stream through, near the GPU it serves.
#pragma once
#include <string_view>
#include <vector>

#include "voltapile/base/thread_pool.hpp"
#include "voltapile/device/device.hpp"

namespace voltapile::host {

// Memory that no GPU reads: 2 MiB aligned, in large pages where the system grants them, all of it
// touched here by the pool's threads. Each touches the share that for_each_share gives it, so where
// threads stay on a NUMA node the pages do too: for host::adamw, one buffer a tensor. Contents
// start as 0xff. Error(does_not_fit) names `what` and the size; the system may also grant more than
// it has and kill the process later, so compare with the memory there is before.
Buffer compute_memory(size_t bytes, std::string_view what, ThreadPool& pool);

// Of the cpus this process may use, those nearest to the PCI device ("0000:17:00.0", as
// Device::pci_address gives it), in rising order. All it may use where the address is empty or
// unknown, or none of them is near. Reads the machine's topology: milliseconds, so once a run.
std::vector<int> cpus_near(std::string_view pci_address);

}  // namespace voltapile::host
