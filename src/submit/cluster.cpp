// What this machine knows of a queue, and the way to it.
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "voltapile/base/error.hpp"
#include "voltapile/submit/submit.hpp"

extern char** environ;

namespace voltapile {
namespace {

namespace fs = std::filesystem;

bool on_path(const std::string& command) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const fs::path candidate = fs::path(rest.substr(0, end)) / command;
    if (access(candidate.c_str(), X_OK) == 0) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

// Standard output of a command that needs no quoting; empty when it fails.
std::string output_of(const char* command) {
  FILE* pipe = popen(command, "r");
  if (pipe == nullptr) return "";
  std::string text;
  std::array<char, 4096> part;
  while (const size_t got = fread(part.data(), 1, part.size(), pipe)) text.append(part.data(), got);
  return pclose(pipe) == 0 ? text : "";
}

bool has_scripts(const fs::path& folder) { return fs::exists(folder / "run_job.sh"); }

// Where a build folder and an installed prefix have them, seen from the program's own folder.
constexpr const char* kPlaces[] = {"../../jobscripts", "../share/voltapile/jobscripts"};

}  // namespace

Cluster look_at_cluster() {
  Cluster cluster;
  if (on_path("sbatch")) cluster.queues.push_back(Queue::slurm);
  if (on_path("qsub")) cluster.queues.push_back(Queue::pbs);
  if (on_path("bsub")) cluster.queues.push_back(Queue::lsf);
  if (on_path("sinfo"))
    cluster.kinds = parse_sinfo(output_of("sinfo -h -e -o '%P|%D|%c|%m|%G|%l' 2>/dev/null"));
  return cluster;
}

void submit(const Submission& submission) {
  for (const std::string& setting : submission.environment) {
    const size_t equals = setting.find('=');
    setenv(setting.substr(0, equals).c_str(), setting.substr(equals + 1).c_str(), 1);
  }
  std::vector<char*> words;
  for (const std::string& word : submission.command)
    words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawnp(&child, words[0], nullptr, nullptr, words.data(), environ);
  if (error != 0) throw Error(ExitCode::failure, format("{}: {}", words[0], std::strerror(error)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Error(ExitCode::failure, format("{} did not take the job; it says why above", words[0]));
}

std::string own_executable() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

std::string find_jobscripts(const std::string& executable) {
  std::vector<fs::path> places;
  if (const char* named = std::getenv("VOLTAPILE_JOBSCRIPTS")) places.emplace_back(named);
  for (const char* place : kPlaces) places.push_back(fs::path(executable).parent_path() / place);
  places.emplace_back("jobscripts");
  std::string looked;
  for (const fs::path& place : places) {
    if (has_scripts(place)) return fs::canonical(place).string();
    looked += "\n  " + place.lexically_normal().string();
  }
  throw Error(ExitCode::bad_input,
              "no job scripts (run_job.sh) found; name their folder by VOLTAPILE_JOBSCRIPTS. "
              "Looked in:" +
                  looked);
}

std::string program_for_jobs(const std::string& executable, const std::string& jobscripts) {
  // As run_job.sh looks for it.
  for (const char* place : {"../build/src/voltapile", "../../../bin/voltapile"}) {
    std::error_code error;
    const fs::path found = fs::path(jobscripts) / place;
    if (access(found.c_str(), X_OK) != 0) continue;
    return fs::equivalent(found, executable, error) ? "" : executable;
  }
  return executable;
}

}  // namespace voltapile
