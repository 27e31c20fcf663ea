#include "voltapile/doctor/doctor.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include <unistd.h>

#include "voltapile/base/format.hpp"
#include "voltapile/base/host.hpp"
#include "voltapile/base/version.hpp"
#include "voltapile/device/device.hpp"

#include "parts.hpp"

extern "C" char** environ;

namespace voltapile {

namespace doctor {

std::string first_line(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + " 2>/dev/null").c_str(), "r"),
                                                   pclose);
  std::string text;
  std::array<char, 4096> part{};
  while (pipe != nullptr) {
    const size_t got = fread(part.data(), 1, part.size(), pipe.get());
    if (got == 0) break;
    text.append(part.data(), got);
  }
  return text;
}

bool is_on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');)
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

namespace {

std::vector<Finding> examine_build() {
  std::vector<Finding> found;
  const auto device = make_cpu_device(1);
  std::string kernels;
  for (const auto& [name, version] : device->versions()) kernels += name + ": " + version;
  Finding program{.what = "voltapile",
                  .value = format("{}, {}; CUDA: {}", kVersion, kernels,
                                  cuda_is_built() ? "built in" : "not built in")};
  const std::string flags = output_of("grep -m1 '^flags' /proc/cpuinfo");
  if (kernels.find("any CPU") != std::string::npos && flags.find(" avx2") != std::string::npos) {
    program.health = Health::warning;
    program.advice =
        "this CPU has AVX2, which makes CPU ranks several times faster: meson "
        "configure build -Dcpu_arch=native, or the oldest CPU of the cluster";
  }
  found.push_back(program);
  return found;
}

std::vector<Finding> examine_tools() {
  std::vector<Finding> found;
  struct Tool {
    const char* name;
    const char* advice;
  };
  for (const Tool& tool : {Tool{"numactl",
                                "the job scripts bind ranks to the CPUs beside their "
                                "GPU with it; without it they use taskset"},
                           Tool{"setpriv",
                                "(util-linux) without it a rank may live on when its "
                                "script is killed"}}) {
    if (is_on_path(tool.name)) continue;
    found.push_back({Health::note, tool.name, "not installed", tool.advice});
  }
  return found;
}

std::vector<std::string> variable_names() {
  std::vector<std::string> names;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string entry = *at;
    names.push_back(entry.substr(0, entry.find('=')));
  }
  std::sort(names.begin(), names.end());
  return names;
}

const char* word_for(Health health) {
  switch (health) {
    case Health::good: return "good";
    case Health::note: return "note";
    case Health::warning: return "warning";
    case Health::problem: return "PROBLEM";
  }
  return "?";
}

}  // namespace
}  // namespace doctor

std::vector<Finding> examine_node() {
  std::vector<Finding> all;
  const auto add = [&all](std::vector<Finding> findings) {
    for (Finding& finding : findings) all.push_back(std::move(finding));
  };
  const Readers readers = doctor::find_readers();
  add(doctor::examine_build());
  add(doctor::examine_machine());
  add(examine_gpus());
  add(doctor::examine_limits());
  add(doctor::examine_mpi(readers));
  add(doctor::examine_tools());
  add(unread_variables(doctor::variable_names(), readers));
  return all;
}

bool has_problems(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.health == Health::problem; });
}

std::string describe(const std::vector<Finding>& findings) {
  std::string text = host_name() + "\n";
  int problems = 0, warnings = 0;
  for (const Finding& finding : findings) {
    problems += finding.health == Health::problem ? 1 : 0;
    warnings += finding.health == Health::warning ? 1 : 0;
    text += format("  {:<8} {:<16} {}\n", doctor::word_for(finding.health), finding.what,
                   finding.value);
    if (!finding.advice.empty()) text += format("  {:<25} {}\n", "", finding.advice);
  }
  return text +
         format("problems: {}, warnings: {}. `voltapile bench` measures what this node gives.\n",
                problems, warnings);
}

}  // namespace voltapile
