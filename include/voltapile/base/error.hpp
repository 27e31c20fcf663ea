// The one exception type. `main` prints it once and exits with its code.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>

#include "voltapile/base/format.hpp"

namespace voltapile {

// What the process returns to the shell; DESIGN and `voltapile --help` list them.
enum class ExitCode : int {
  done = 0,
  bad_input = 2,       // the deck or the command line is wrong
  does_not_fit = 3,    // it will not fit in memory
  bad_data = 4,        // data or a checkpoint is unreadable or damaged
  failure = 5,         // a rank or a device failed, or the program has a fault
  stopped_early = 75,  // stopped on purpose after a checkpoint: submit again
};

// Message: the values, the place and the fix, in one text. Multi-line messages list several faults.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// An error that every rank of a job throws alike, so one of them speaks for all and nobody waits
// for another.
class SharedError : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void throw_failed_check(const char* file, int line, const char* condition,
                                     const std::string& message);
}  // namespace voltapile

// Always on. For faults of the program itself; faults of the user's input throw Error with their
// own code.
#define VP_CHECK(condition, ...)                                                                   \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::voltapile::throw_failed_check(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
