// What every thread of this process is doing, for the report of a job that hangs.
#pragma once
#include <chrono>
#include <string>
#include <vector>

namespace voltapile {

struct ThreadStack {
  int thread = 0;                   // its number in /proc/self/task
  std::string name;                 // of the thread
  std::string state;                // the kernel's: "S futex_wait_queue", "D nfs_wait_bit_killable"
  std::vector<std::string> frames;  // innermost first; empty where the thread gave no answer
};

// Makes thread_stacks possible; once, early: the first backtrace loads a library. Takes a real-time
// signal that nobody else handles.
void prepare_thread_stacks();

// Interrupts each thread with that signal and collects what it answers, `patience` for all
// together. A thread that sleeps in the kernel without interruption does not answer, and its state
// says where.
std::vector<ThreadStack> thread_stacks(std::chrono::milliseconds patience);

}  // namespace voltapile
