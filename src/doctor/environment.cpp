// MPI, and variables of the environment that nothing reads.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include "voltapile/base/format.hpp"
#include "voltapile/comm/mpi.hpp"

#include "parts.hpp"

namespace voltapile {

namespace {

bool starts_with(const std::string& text, const std::string& with) {
  return text.rfind(with, 0) == 0;
}

// A library holds the names that it asks for as texts that end with a zero byte.
bool holds_name(const std::string& library, const std::string& name) {
  return library.find(name + '\0') != std::string::npos;
}

// Read by the program, by its job scripts, or by its tests.
constexpr std::array kOurs = {
    "VOLTAPILE",          "VOLTAPILE_CHANGES",  "VOLTAPILE_CUDA12",       "VOLTAPILE_DECK",
    "VOLTAPILE_ENV",      "VOLTAPILE_FIGURES",  "VOLTAPILE_SOAK_MINUTES", "VOLTAPILE_JOBSCRIPTS",
    "VOLTAPILE_LAUNCHER", "VOLTAPILE_LINGER",   "VOLTAPILE_MARGIN",       "VOLTAPILE_PAUSE",
    "VOLTAPILE_RESTARTS", "VOLTAPILE_SWEEP",    "VOLTAPILE_SYSFS",        "VOLTAPILE_BINARY",
    "VOLTAPILE_FULL",     "VOLTAPILE_GPU_ARCH", "VOLTAPILE_NVCC",         "VOLTAPILE_TEST_DEVICE"};

// Set by a launcher for its ranks, or read by its compiler wrappers.
bool is_launchers_own(const std::string& name) {
  static constexpr std::array kBegins = {
      "OMPI_COMM_WORLD_", "OMPI_APP_",        "OMPI_ARGV",        "OMPI_COMMAND",
      "OMPI_FILE_",       "OMPI_FIRST_RANKS", "OMPI_NUM_APP_CTX", "OMPI_UNIVERSE_SIZE"};
  static constexpr std::array kWrappers = {"OMPI_CC",      "OMPI_CXX",      "OMPI_FC",
                                           "OMPI_CFLAGS",  "OMPI_CPPFLAGS", "OMPI_CXXFLAGS",
                                           "OMPI_LDFLAGS", "OMPI_LIBS"};
  return std::any_of(kBegins.begin(), kBegins.end(),
                     [&](const char* begin) { return starts_with(name, begin); }) ||
         std::find(kWrappers.begin(), kWrappers.end(), name) != kWrappers.end();
}

// Parameters that mpirun hands to its ranks and that ompi_info does not list.
bool is_from_mpirun(const std::string& parameter) {
  static constexpr std::array kBegins = {"ess_base_", "initial_wdir", "orte_", "shmem_RUNTIME_"};
  return std::any_of(kBegins.begin(), kBegins.end(),
                     [&](const char* begin) { return starts_with(parameter, begin); });
}

Finding unread(const std::string& name, const std::string& why, const std::string& advice) {
  return {Health::warning, "variable", name + ": " + why, advice};
}

}  // namespace

std::vector<Finding> unread_variables(const std::vector<std::string>& names,
                                      const Readers& readers) {
  constexpr const char* kMca = "OMPI_MCA_";
  const bool in_a_job =
      std::find(names.begin(), names.end(), "OMPI_COMM_WORLD_RANK") != names.end();
  std::vector<Finding> found;
  for (const std::string& name : names) {
    if (starts_with(name, "NCCL_") && readers.nccl.empty()) {
      found.push_back(
          unread(name, "no NCCL is here to read it", "unset it, or load NCCL's module"));
    } else if (starts_with(name, "NCCL_") && !holds_name(readers.nccl, name)) {
      found.push_back(unread(name, "this NCCL does not read it",
                             "unset it: it has another name, belongs to another program, or is no "
                             "longer needed"));
    } else if (starts_with(name, kMca)) {
      const std::string parameter = name.substr(std::string(kMca).size());
      const bool is_framework =
          readers.parameters.find(format("mca:{}:", parameter)) != std::string::npos;
      if (readers.parameters.empty() || is_framework || (in_a_job && is_from_mpirun(parameter)) ||
          readers.parameters.find(format(":param:{}:", parameter)) != std::string::npos)
        continue;
      found.push_back(unread(name, "this Open MPI has no such parameter",
                             "`ompi_info --all | grep NAME` lists what there is"));
    } else if (starts_with(name, "OMPI_") && !readers.open_mpi.empty() && !is_launchers_own(name) &&
               !holds_name(readers.open_mpi, name)) {
      found.push_back(unread(name, "this Open MPI does not read it", "unset it"));
    } else if (starts_with(name, "VOLTAPILE") &&
               std::find(kOurs.begin(), kOurs.end(), name) == kOurs.end()) {
      found.push_back(
          unread(name, "voltapile does not read it",
                 "docs/CLUSTER.md lists the variables; a run is described by its deck"));
    }
  }
  return found;
}

namespace doctor {

namespace {

std::string contents(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

std::string file_of(const char* library, const char* symbol) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return {};
  Dl_info info{};
  void* at = dlsym(handle, symbol);
  return at != nullptr && dladdr(at, &info) != 0 ? info.dli_fname : "";
}

// "4.1.4" of "mpirun (Open MPI) 4.1.4" or "Open MPI v4.1.4, package: ...".
std::string version_in(const std::string& text) {
  const size_t name = text.find("Open MPI");
  if (name == std::string::npos) return {};
  const size_t begin = text.find_first_of("0123456789", name);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_first_not_of("0123456789.", begin) - begin);
}

}  // namespace

Readers find_readers() {
  Readers readers;
  if (const std::string file = file_of("libnccl.so.2", "ncclGetVersion"); !file.empty())
    readers.nccl = contents(file);
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* result) {
        const std::string name = object->dlpi_name;
        for (const char* part : {"libmpi.so", "libopen-rte", "libopen-pal"})
          if (name.find(part) != std::string::npos)
            *static_cast<std::string*>(result) += contents(name);
        return 0;
      },
      &readers.open_mpi);
  // Its launcher reads some by itself.
  for (const char* program : {"mpirun", "orterun"}) {
    std::string path = output_of(format("command -v {}", program));
    path.erase(std::remove(path.begin(), path.end(), '\n'), path.end());
    if (!path.empty() && !readers.open_mpi.empty()) readers.open_mpi += contents(path);
  }
  readers.parameters = output_of("ompi_info --all --parsable");
  return readers;
}

std::vector<Finding> examine_mpi(const Readers& readers) {
  std::vector<Finding> found;
  const std::string library = MpiSession::library();
  Finding mpi{.what = "MPI", .value = library.substr(0, library.find(','))};
  const std::string threads = "MPI_THREAD_MULTIPLE: ";
  if (readers.parameters.find(threads + "no") != std::string::npos) {
    mpi.health = Health::problem;
    mpi.advice =
        "it is built without MPI_THREAD_MULTIPLE: load another MPI module, and build again";
  }
  found.push_back(mpi);
  const std::string launcher = output_of("mpirun --version");
  Finding start{.what = "mpirun", .value = launcher.substr(0, launcher.find('\n'))};
  if (launcher.empty()) {
    start.health = is_on_path("srun") ? Health::note : Health::problem;
    start.value = "not on PATH";
    start.advice =
        "load the module of the MPI above; under Slurm, srun --mpi=pmix starts ranks too";
  } else if (!version_in(library).empty() && version_in(launcher) != version_in(library)) {
    start.health = Health::problem;
    start.advice =
        "not the MPI that the program was linked to: every rank would believe to be "
        "alone. Load one MPI module only";
  }
  found.push_back(start);
  const char* allowed = std::getenv("OMPI_ALLOW_RUN_AS_ROOT");
  if (geteuid() == 0 && !launcher.empty() && version_in(launcher).size() > 0 && allowed == nullptr)
    found.push_back({Health::warning, "root", "mpirun refuses to work for root",
                     "work as a user; in a container: . jobscripts/env_workstation.sh"});
  return found;
}

}  // namespace doctor
}  // namespace voltapile
