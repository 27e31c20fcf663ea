#include "node_commands.hpp"

#include <iostream>

#include "voltapile/base/log.hpp"
#include "voltapile/doctor/doctor.hpp"

namespace voltapile {

ExitCode show_node() {
  const std::vector<Finding> findings = examine_node();
  std::cout << describe(findings) << std::flush;
  return has_problems(findings) ? ExitCode::failure : ExitCode::done;
}

WatchOptions watch_options(MpiSession& session) {
  return {.end_job =
              [&session](const HangReport& report) {
                log::error(report.details);
                log::error("error: " + report.verdict);
                session.abort(static_cast<int>(ExitCode::failure));
              },
          .say = [](const std::string& line) { log::error("error: " + line); }};
}

std::vector<Fact> launcher_facts() { return {{.name = "MPI", .value = MpiSession::library()}}; }

}  // namespace voltapile
