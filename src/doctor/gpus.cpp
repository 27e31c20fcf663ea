// GPUs by NVML.
#include <fstream>
#include <string>

#include "voltapile/base/format.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/device/nvml.hpp"

#include "parts.hpp"

namespace voltapile {

namespace {

constexpr unsigned kMostLinks = 18;

std::string numa_node(const std::string& bus_id) {
  std::string folder;  // 00000000:3B:00.0 is the folder 0000:3b:00.0
  for (const char c : bus_id.size() > 12 ? bus_id.substr(bus_id.size() - 12) : bus_id)
    folder += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::ifstream file("/sys/bus/pci/devices/" + folder + "/numa_node");
  int node = -1;
  file >> node;
  return node < 0 ? "" : format(", NUMA node{}", node);
}

int links_of(const Nvml& nvml, Nvml::Gpu gpu) {
  int links = 0;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    int active = 0;
    links += nvml.call("nvmlDeviceGetNvLinkState", gpu, link, &active) && active == 1 ? 1 : 0;
  }
  return links;
}

void add_gpu(const Nvml& nvml, unsigned number, Nvml::Gpu gpu, std::vector<Finding>& found) {
  char name[96] = "?";
  Nvml::PciInfo pci{};
  Nvml::MemoryInfo memory{};
  int major = 0, minor = 0;
  nvml.call("nvmlDeviceGetName", gpu, &name[0], 96u);
  nvml.call("nvmlDeviceGetPciInfo_v3", gpu, &pci);
  nvml.call("nvmlDeviceGetMemoryInfo", gpu, &memory);
  nvml.call("nvmlDeviceGetCudaComputeCapability", gpu, &major, &minor);
  Finding finding{.what = format("GPU {}", number),
                  .value = format("{}, sm_{}{}, {} free of {}{}, {} NVLinks", name, major, minor,
                                  show_bytes(static_cast<double>(memory.free)),
                                  show_bytes(static_cast<double>(memory.total)), numa_node(pci.id),
                                  links_of(nvml, gpu))};
  const auto say = [&](Health health, const std::string& advice) {
    if (health <= finding.health) return;
    finding.health = health;
    finding.advice = advice;
  };
  unsigned now = 0, most = 0;
  if (nvml.call("nvmlDeviceGetCurrPcieLinkWidth", gpu, &now) &&
      nvml.call("nvmlDeviceGetMaxPcieLinkWidth", gpu, &most) && now < most)
    say(Health::warning,
        format("its PCIe link has {} of {} lanes: offload and staged transport are "
               "slow; tell the site",
               now, most));
  if (memory.total > 0 && memory.free < memory.total / 10 * 9)
    say(Health::warning, "another process holds memory there: nvidia-smi");
  int mode = 0;
  constexpr int kProhibited = 2;
  if (nvml.call("nvmlDeviceGetComputeMode", gpu, &mode) && mode == kProhibited)
    say(Health::problem, "its compute mode is prohibited: nvidia-smi -c DEFAULT, as root");
  unsigned long long errors = 0;
  if (nvml.call("nvmlDeviceGetTotalEccErrors", gpu, 1, 0, &errors) && errors > 0)
    say(Health::problem, format("{} uncorrected memory errors since the driver was loaded: exclude "
                                "this node, tell the site",
                                errors));
  if (major > 0 && major < 7) say(Health::problem, "voltapile needs sm_70 (V100) or later");
  found.push_back(finding);
}

const char* name_of_distance(int ancestor) {
  switch (ancestor) {
    case 0: return "one board";
    case 10: return "one PCIe switch";
    case 20: return "several PCIe switches";
    case 30: return "a PCIe host bridge";
    case 40: return "one NUMA node";
    default: return "the link between sockets";
  }
}

// The furthest two GPUs.
void add_topology(const Nvml& nvml, const std::vector<Nvml::Gpu>& gpus,
                  std::vector<Finding>& found) {
  int worst = -1;
  std::string pair;
  bool linked = true;
  for (size_t a = 0; a < gpus.size(); ++a) {
    linked = linked && links_of(nvml, gpus[a]) > 0;
    for (size_t b = a + 1; b < gpus.size(); ++b) {
      int ancestor = -1;
      if (!nvml.call("nvmlDeviceGetTopologyCommonAncestor", gpus[a], gpus[b], &ancestor)) continue;
      if (ancestor <= worst) continue;
      worst = ancestor;
      pair = format("{}-{}", a, b);
    }
  }
  if (worst < 0) return;
  Finding finding{
      .what = "between GPUs",
      .value = format("{}; the furthest, {}, over {}", linked ? "NVLink" : "no NVLink on some",
                      pair, name_of_distance(worst))};
  if (!linked) {
    finding.health = Health::note;
    finding.advice = "tensor parallelism over PCIe is slow: prefer parallel.pipeline";
  }
  found.push_back(finding);
}

}  // namespace

std::vector<Finding> examine_gpus(const std::string& library) {
  Nvml nvml(library);
  if (!nvml.is_here())
    return {{Health::note, "GPUs", "none: no NVIDIA driver here",
             "run.device = \"cpu\" works; on a login node this is as it should be"}};
  if (!nvml.start())
    return {{Health::problem, "GPUs", "the driver's library is here and does not start",
             "nvidia-smi says why; often library and kernel module are of two versions: reboot"}};
  std::vector<Finding> found;
  char driver[96] = "?";
  nvml.call("nvmlSystemGetDriverVersion", &driver[0], 96u);
  found.push_back({.what = "driver", .value = driver});
  unsigned count = 0;
  if (!nvml.call("nvmlDeviceGetCount_v2", &count) || count == 0) {
    found.push_back(
        {Health::problem, "GPUs", "none is visible",
         "ask for them (--gpus-per-node); else one fell off the bus: dmesg | grep -i xid"});
    return found;
  }
  std::vector<Nvml::Gpu> gpus;
  for (unsigned number = 0; number < count; ++number) {
    Nvml::Gpu gpu = nullptr;
    if (!nvml.call("nvmlDeviceGetHandleByIndex_v2", number, &gpu)) {
      found.push_back({Health::problem, format("GPU {}", number), "does not answer",
                       "dmesg | grep -i xid; exclude this node, tell the site"});
      continue;
    }
    gpus.push_back(gpu);
    add_gpu(nvml, number, gpu, found);
  }
  add_topology(nvml, gpus, found);
  return found;
}

}  // namespace voltapile
