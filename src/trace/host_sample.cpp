#include <fstream>
#include <sstream>

#include <sys/resource.h>
#include <unistd.h>

#include "voltapile/trace/event.hpp"

namespace voltapile {
namespace {

// proc(5): the second number of statm is the resident set, in pages.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return file ? resident * sysconf(_SC_PAGESIZE) : 0;
}

double cpu_seconds() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void read_storage(HostSample& sample) {
  std::ifstream file("/proc/self/io");
  for (std::string key; file >> key;) {
    int64_t value = 0;
    if (!(file >> value)) return;
    if (key == "read_bytes:") sample.read_bytes = value;
    if (key == "write_bytes:") sample.written_bytes = value;
  }
}

// proc(5): after the device's name, bytes received are the first number and bytes sent the ninth.
void read_network(HostSample& sample) {
  std::ifstream file("/proc/net/dev");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(' ');
    if (line.compare(begin, colon - begin, "lo") == 0) continue;
    std::istringstream numbers(line.substr(colon + 1));
    int64_t value = 0;
    for (int column = 0; column < 9 && numbers >> value; ++column) {
      if (column == 0) sample.received_bytes += value;
      if (column == 8) sample.sent_bytes += value;
    }
  }
}

}  // namespace

HostSample read_host_sample() {
  HostSample sample;
  sample.resident_bytes = resident_bytes();
  sample.cpu_seconds = cpu_seconds();
  read_storage(sample);
  read_network(sample);
  return sample;
}

}  // namespace voltapile
