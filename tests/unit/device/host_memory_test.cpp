// Host memory for the optimizer, and the cpus beside a GPU.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <hwloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "voltapile/base/error.hpp"
#include "voltapile/device/host/memory.hpp"

namespace voltapile::host {
namespace {

std::vector<int> allowed() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  return cpus;
}

TEST(ComputeMemory, starts_on_a_large_page_and_is_filled_to_its_last_byte) {
  ThreadPool pool(3);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4097}, (size_t{9} << 20) + 5}) {
    const Buffer buffer = compute_memory(bytes, "moments", pool);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (size_t{1} << 21), 0u);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes,
                            [](std::byte b) { return b == std::byte{0xff}; }));
  }
}

TEST(ComputeMemory, is_all_there_after_the_call_and_gone_with_the_buffer) {
  ThreadPool pool(2);
  constexpr size_t kPages = 1000, kPage = 4096;
  void* address = nullptr;
  std::vector<unsigned char> there(kPages);
  {
    const Buffer buffer = compute_memory(kPages * kPage, "moments", pool);
    address = buffer.data();
    ASSERT_EQ(mincore(address, kPages * kPage, there.data()), 0);
    EXPECT_EQ(std::count(there.begin(), there.end(), 1), kPages);
  }
  EXPECT_EQ(mincore(address, kPages * kPage, there.data()), -1);
  EXPECT_EQ(errno, ENOMEM) << "not mapped any more";
}

TEST(ComputeMemory, says_what_did_not_fit) {
  ThreadPool pool(1);
  for (const size_t bytes : {size_t{1} << 60, SIZE_MAX}) try {
      compute_memory(bytes, "master weights", pool);
      FAIL() << "granted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::does_not_fit);
      EXPECT_EQ(std::string(e.what()).find("master weights needs "), 0u) << e.what();
    }
}

TEST(CpusNear, gives_all_allowed_cpus_where_no_device_is_known) {
  EXPECT_EQ(cpus_near(""), allowed());
  EXPECT_EQ(cpus_near("7777:77:1f.7"), allowed());
  EXPECT_EQ(cpus_near("no address"), allowed());
}

// "0-3,8" and the like, of which this process is allowed.
std::vector<int> allowed_of(const std::string& list) {
  std::vector<int> cpus;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const int first = std::stoi(part);
    const int last = dash == std::string::npos ? first : std::stoi(part.substr(dash + 1));
    for (const int cpu : allowed())
      if (first <= cpu && cpu <= last) cpus.push_back(cpu);
  }
  return cpus;
}

TEST(CpusNear, agrees_with_the_kernel_about_this_machines_devices) {
  const std::filesystem::path devices = "/sys/bus/pci/devices";
  int met = 0;
  if (std::filesystem::is_directory(devices))
    for (const auto& device : std::filesystem::directory_iterator(devices)) {
      std::string list;
      std::getline(std::ifstream(device.path() / "local_cpulist"), list);
      std::vector<int> wanted = list.empty() ? allowed() : allowed_of(list);
      if (wanted.empty()) wanted = allowed();
      EXPECT_EQ(cpus_near(device.path().filename().string()), wanted) << device.path();
      if (++met == 5) break;
    }
  if (met == 0) GTEST_SKIP() << "no PCI devices here";
}

// A machine of two NUMA nodes, one cpu and one GPU each, as hwloc writes such a machine down.
class TwoNodes {
 public:
  TwoNodes()
      : file_(std::filesystem::temp_directory_path() /
              ("two_nodes_" + std::to_string(getpid()) + ".xml")) {
    hwloc_topology_t topology;
    hwloc_topology_init(&topology);
    hwloc_topology_set_synthetic(topology, "package:2 [numa] pu:1");
    hwloc_topology_load(topology);
    char* text = nullptr;
    int length = 0;
    hwloc_topology_export_xmlbuffer(topology, &text, &length, 0);
    std::string xml(text);
    hwloc_free_xmlbuffer(topology, text);
    hwloc_topology_destroy(topology);
    // A package's own children end with its tag.
    size_t at = 0;
    for (const std::string bus : {"17", "ca"}) {
      at = xml.find("type=\"PU\"", at);
      at = xml.find("</object>", at) == xml.find("/>", at) ? at : xml.find("/>", at) + 2;
      const std::string device =
          "<object type=\"Bridge\" gp_index=\"10" + std::to_string(at) +
          "\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[" + bus + "-" + bus +
          "]\"><object type=\"PCIDev\" gp_index=\"20" + std::to_string(at) +
          "\" pci_busid=\"0000:" + bus +
          ":00.0\" pci_type=\"0302 [10de:1db5] [10de:1249] a1\" pci_link_speed=\"0.000000\"/>"
          "</object>";
      xml.insert(at, device);
      at += device.size();
    }
    std::ofstream(file_) << xml;
    setenv("HWLOC_XMLFILE", file_.c_str(), 1);
  }
  ~TwoNodes() {
    unsetenv("HWLOC_XMLFILE");
    std::filesystem::remove(file_);
  }

 private:
  std::filesystem::path file_;
};

TEST(CpusNear, gives_the_cpus_of_the_devices_node) {
  const std::vector<int> all = allowed();
  if (std::count(all.begin(), all.end(), 0) + std::count(all.begin(), all.end(), 1) != 2)
    GTEST_SKIP() << "needs cpus 0 and 1";
  const TwoNodes machine;
  EXPECT_EQ(cpus_near("0000:17:00.0"), std::vector<int>{0});
  EXPECT_EQ(cpus_near("0000:ca:00.0"), std::vector<int>{1});
  EXPECT_EQ(cpus_near("0000:CA:00.0"), std::vector<int>{1}) << "as CUDA may write it";
  EXPECT_EQ(cpus_near("0000:cb:00.0"), all);
}

}  // namespace
}  // namespace voltapile::host
