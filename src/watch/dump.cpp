#include "dump.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "voltapile/base/format.hpp"
#include "voltapile/base/host.hpp"
#include "voltapile/base/stacks.hpp"

namespace voltapile::watch {

namespace {

constexpr std::chrono::milliseconds kStackPatience(1000);

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

std::string describe(const std::string& place, const RankState& state) {
  std::string text =
      format("{} on {}, process {}, {}\n{}, {} steps done, nothing moved for {:.1f} s\n", place,
             host_name(), getpid(), time_of_day(), name_of(state.stage), state.step,
             state.stalled_seconds);
  text += "\nLanes: the first instruction of each that has not ended\n";
  for (const LaneState& lane : state.lanes)
    text += format("  {:<9} {} of step {}{}\n", lane.lane, lane.what, lane.step,
                   lane.begun ? ", begun" : ", not begun");
  if (state.lanes.empty()) text += "  none has work\n";
  text += "\nCommunicators: the last call of each\n";
  for (const CallState& call : state.calls)
    text += format("  {:<24} {}, call {}{}\n", call.communicator, call.call, call.begun,
                   call.begun > call.ended ? ", under way" : ", ended");
  text += "\nThreads\n";
  for (const ThreadStack& stack : thread_stacks(kStackPatience)) {
    text += format("  {} {} [{}]\n", stack.thread, stack.name, stack.state);
    for (const std::string& frame : stack.frames) text += format("    {}\n", frame);
    if (stack.frames.empty()) text += "    no answer\n";
  }
  return text;
}

}  // namespace

void Dump::start(const std::filesystem::path& file, const std::string& place,
                 const RankState& state) {
  file_ = file;
  if (file.empty()) return;
  progress_ = std::make_shared<Progress>();
  std::thread([file, place, state, progress = progress_] {
    const std::string text = describe(place, state);
    std::error_code error;
    std::filesystem::create_directories(file.parent_path(), error);
    std::ofstream out(file);
    out << text << std::flush;
    if (!out) {
      const std::lock_guard lock(progress->mutex);
      progress->fault = std::strerror(errno);
    }
    progress->ended.store(true);
  }).detach();
}

std::string Dump::outcome() const {
  if (progress_ == nullptr) return "";
  const std::string where = file_.parent_path().string();
  if (!progress_->ended.load())
    return format("\n  {} does not take what the ranks are at: is its file system at work?", where);
  const std::lock_guard lock(progress_->mutex);
  if (!progress_->fault.empty()) return format("\n  {}: {}", file_.string(), progress_->fault);
  return format("\n  {}: lanes, communicators and stacks of each rank", where);
}

uint64_t process_bytes() {
  const int file = open("/proc/self/io", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  std::array<char, 512> text{};
  const ssize_t got = read(file, text.data(), text.size() - 1);
  close(file);
  if (got <= 0) return 0;
  const auto value = [&](const char* name) -> uint64_t {
    const char* at = std::strstr(text.data(), name);
    return at == nullptr ? 0 : std::strtoull(at + std::strlen(name), nullptr, 10);
  };
  return value("rchar: ") + value("wchar: ");
}

}  // namespace voltapile::watch
