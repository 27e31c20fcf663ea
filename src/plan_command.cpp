#include "plan_command.hpp"

#include <iostream>

#include "voltapile/base/host.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/forecast/fit.hpp"
#include "voltapile/forecast/forecast.hpp"

namespace voltapile {

void require_possible(const Plan& plan) {
  const std::vector<std::string> missing = not_trainable(plan);
  if (!missing.empty()) throw Error(ExitCode::bad_input, join(missing, "\n"));
}

void require_trainable(const Plan& plan) {
  require_possible(plan);
  require_fit(plan, {}, HostMemory{available_memory(), local_ranks(plan.mesh.size())});
}

ExitCode show_plan(const std::string& deck, const std::vector<std::string>& overrides,
                   const std::string& hardware_file) {
  const Plan plan = make_plan(load_deck(deck, overrides));
  const Hardware hardware = hardware_file.empty() ? Hardware{} : load_hardware(hardware_file);
  std::cout << describe(plan, hardware);
  const std::vector<std::string> missing = not_trainable(plan);
  if (!missing.empty()) {
    std::cout << "\nThis version plans this deck but cannot train it:\n";
    for (const std::string& line : missing) std::cout << "  " << line << "\n";
  }
  std::cout.flush();
  require_fit(plan, hardware);
  return ExitCode::done;
}

}  // namespace voltapile
