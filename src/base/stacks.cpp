#include "voltapile/base/stacks.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include <cxxabi.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace voltapile {

namespace {

constexpr int kMostThreads = 512, kMostFrames = 48;
// The handler, and the frame that the kernel puts below it.
constexpr int kOwnFrames = 2;

// One a thread, so that a late answer does no harm to another's.
struct Answer {
  std::atomic<pid_t> thread{0};
  std::atomic<int> count{-1};
  std::array<void*, kMostFrames> frames;
};
std::array<Answer, kMostThreads> answers;
std::atomic<int> asked{0};  // answers in use
std::mutex one_at_a_time;
std::atomic<int> signal_number{0};

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

extern "C" void on_question(int) {
  const int saved = errno;
  const pid_t self = this_thread();
  for (int i = 0; i < asked.load(); ++i) {
    Answer& answer = answers[static_cast<size_t>(i)];
    if (answer.thread.load() != self || answer.count.load() >= 0) continue;
    answer.count.store(backtrace(answer.frames.data(), kMostFrames));
  }
  errno = saved;
}

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// "S" and where in the kernel, from the task's folder.
std::string state_of(const std::filesystem::path& task) {
  const std::string stat = first_line(task / "stat");
  const size_t name_end = stat.rfind(')');
  std::string state = name_end == std::string::npos ? "?" : stat.substr(name_end + 2, 1);
  const std::string where = first_line(task / "wchan");
  if (!where.empty() && where != "0") state += " " + where;
  return state;
}

// "program(_ZN9voltapile4mainEv+0x12) [0x55...]" with the name as it is written in C++.
std::string readable(const std::string& line) {
  const size_t open = line.find('('), plus = line.find('+', open);
  if (open == std::string::npos || plus == std::string::npos || plus == open + 1) return line;
  const std::string symbol = line.substr(open + 1, plus - open - 1);
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  if (status != 0) return line;
  return line.substr(0, open + 1) + name.get() + line.substr(plus);
}

std::vector<std::string> frames_of(const Answer& answer) {
  std::vector<std::string> lines;
  const int count = answer.count.load();
  if (count <= kOwnFrames) return lines;
  const std::unique_ptr<char*, void (*)(void*)> texts(
      backtrace_symbols(answer.frames.data(), count), std::free);
  for (int i = kOwnFrames; texts != nullptr && i < count; ++i)
    lines.push_back(readable(texts.get()[i]));
  return lines;
}

}  // namespace

void prepare_thread_stacks() {
  const std::lock_guard lock(one_at_a_time);
  if (signal_number.load() != 0) return;
  std::array<void*, 4> frames{};
  backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int number = SIGRTMAX - 1; number > SIGRTMIN; --number) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
    struct sigaction ours {};
    ours.sa_handler = on_question;
    ours.sa_flags = SA_RESTART;
    sigemptyset(&ours.sa_mask);
    if (sigaction(number, &ours, nullptr) == 0) {
      signal_number.store(number);
      return;
    }
  }
}

std::vector<ThreadStack> thread_stacks(std::chrono::milliseconds patience) {
  prepare_thread_stacks();
  const std::lock_guard lock(one_at_a_time);
  std::vector<ThreadStack> stacks;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    ThreadStack stack;
    stack.thread = std::atoi(entry.path().filename().c_str());
    stack.name = first_line(entry.path() / "comm");
    stack.state = state_of(entry.path());
    stacks.push_back(std::move(stack));
  }
  std::sort(stacks.begin(), stacks.end(),
            [](const ThreadStack& a, const ThreadStack& b) { return a.thread < b.thread; });
  // Answers of an earlier question may still be on their way: each gets a slot of its own again.
  const int first =
      asked.load() + static_cast<int>(stacks.size()) <= kMostThreads ? asked.load() : 0;
  const int count = std::min(static_cast<int>(stacks.size()), kMostThreads - first);
  for (int i = 0; i < count; ++i) {
    Answer& answer = answers[static_cast<size_t>(first + i)];
    answer.count.store(-1);
    answer.thread.store(stacks[static_cast<size_t>(i)].thread);
  }
  asked.store(std::max(first + count, asked.load()));
  const int number = signal_number.load();
  for (int i = 0; number != 0 && i < count; ++i) {
    const int thread = stacks[static_cast<size_t>(i)].thread;
    if (syscall(SYS_tgkill, getpid(), thread, number) != 0)  // it has ended meanwhile
      answers[static_cast<size_t>(first + i)].count.store(0);
  }
  const auto end = std::chrono::steady_clock::now() + patience;
  const auto all_answered = [&] {
    for (int i = first; i < first + count; ++i)
      if (answers[static_cast<size_t>(i)].count.load() < 0) return false;
    return true;
  };
  while (!all_answered() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  for (int i = 0; i < count; ++i)
    stacks[static_cast<size_t>(i)].frames = frames_of(answers[static_cast<size_t>(first + i)]);
  return stacks;
}

}  // namespace voltapile
