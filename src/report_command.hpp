// `voltapile report`.
#pragma once
#include <string>

#include "voltapile/base/error.hpp"

namespace voltapile {

struct ReportArguments {
  std::string folder, other;   // other: compared with it
  std::string html, perfetto;  // files to write; empty: none
  std::string hardware;        // to compare with; empty: none
  bool follow = false;
};

// Prints the report, and writes the files that were asked for. Error(bad_input) for options that do
// not go together.
ExitCode report(const ReportArguments& arguments);

}  // namespace voltapile
