#include "inference_commands.hpp"

#include <filesystem>

#include "voltapile/base/log.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/train/run_folder.hpp"

#include "node_commands.hpp"
#include "plan_command.hpp"

namespace voltapile {

namespace fs = std::filesystem;

ExitCode evaluate_checkpoint(const DeckLoader& load, const std::string& named,
                             MpiSession& session) {
  fs::path checkpoint;
  const auto check = [&](const Plan& plan) {
    require_trainable(plan);
    checkpoint = resolve_checkpoint(named.empty() ? newest_run_folder(plan.deck) : fs::path(named));
    if (fs::exists(checkpoint / "index.h5")) return;
    throw Error(ExitCode::bad_data,
                format("no checkpoint in {}: train first, or name one with --checkpoint DIR",
                       checkpoint.string()));
  };
  const EvalRecord record =
      evaluate(load, session.world(),
               {.check = check, .watch = watch_options(session), .facts = launcher_facts()},
               [&] { return checkpoint; });
  log::info(format("{}: step {}, test loss {:.4f}, top-1 {:.2f} %, top-5 {:.2f} % of {} pictures",
                   checkpoint.string(), record.step, record.loss, 100 * record.top1,
                   100 * record.top5, show_grouped(record.samples)));
  return ExitCode::done;
}

ExitCode predict_pictures(const PredictRequest& request, MpiSession& session) {
  const Predicted predicted = predict(
      request, session.world(),
      {.check = require_trainable, .watch = watch_options(session), .facts = launcher_facts()});
  log::info(format("{} and {}: {} pictures by the {} of {} (step {})", predicted.csv.string(),
                   predicted.h5.filename().string(), show_grouped(predicted.pictures),
                   predicted.averaged ? "averaged weights" : "weights",
                   predicted.checkpoint.string(), predicted.step));
  return ExitCode::done;
}

}  // namespace voltapile
