#include "report_command.hpp"

#include <iostream>
#include <span>

#include "voltapile/base/clock.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/checkpoint/durable.hpp"
#include "voltapile/report/report.hpp"
#include "voltapile/train/progress.hpp"
#include "voltapile/train/stop_request.hpp"

namespace voltapile {
namespace {

void say_written(const std::string& file) {
  std::cout << format("\nwrote {} ({})\n", file,
                      show_bytes(static_cast<double>(std::filesystem::file_size(file))));
}

}  // namespace

ExitCode report(const ReportArguments& arguments) {
  if (arguments.follow) {
    if (!arguments.other.empty() || !arguments.html.empty() || !arguments.perfetto.empty()) {
      throw Error(
          ExitCode::bad_input,
          "report --follow watches one run in the terminal: leave out the second run, --html "
          "and --perfetto");
    }
    catch_stop_signals();
    follow(arguments.folder, std::cout, output_is_terminal(), stop_requested);
    return ExitCode::done;
  }
  std::vector<Run> runs;
  runs.push_back(read_run(arguments.folder));
  if (!arguments.other.empty()) runs.push_back(read_run(arguments.other));
  if (!arguments.hardware.empty())
    for (Run& run : runs) run.hardware = load_hardware(arguments.hardware);
  for (const Run& run : runs) std::cout << describe(run) << (&run == &runs.back() ? "" : "\n");
  if (runs.size() == 2) std::cout << compare(runs[0], runs[1]);
  if (!arguments.perfetto.empty()) {
    if (!runs.front().trace || runs.front().trace->end_step() == 0) {
      throw Error(ExitCode::bad_input,
                  format("{} holds no recorded step to export: set trace.steps in the deck, say to "
                         "\"10:15\", and train",
                         runs.front().folder.string()));
    }
    write_perfetto(*runs.front().trace, arguments.perfetto);
    say_written(arguments.perfetto);
  }
  if (!arguments.html.empty()) {
    const std::string text = page(runs);
    publish_file(arguments.html, std::as_bytes(std::span(text)));
    say_written(arguments.html);
  }
  std::cout << std::flush;
  return ExitCode::done;
}

}  // namespace voltapile
