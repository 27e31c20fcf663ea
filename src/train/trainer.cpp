#include "voltapile/train/trainer.hpp"

#include <algorithm>
#include <cmath>

#include "voltapile/base/host.hpp"
#include "voltapile/base/log.hpp"
#include "voltapile/base/units.hpp"

#include "run_state.hpp"
#include "training.hpp"

namespace voltapile {

namespace {

int64_t total_steps(const Deck& deck, int64_t samples) {
  if (deck.run.steps) return *deck.run.steps;
  const double exact =
      *deck.run.epochs * static_cast<double>(samples) / static_cast<double>(deck.batch.global);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(exact - 1e-9)));
}

// What ties a rank to the others; it outlives everything that communicates.
struct Ranks {
  std::unique_ptr<Communicator> world;  // until links take it over
  Links links;
};

TrainSummary train_on(Ranks& ranks, const Deck& deck, const TrainOptions& options) {
  std::unique_ptr<Communicator>& world = ranks.world;
  Plan plan;
  agree(*world, [&] { plan = make_plan(deck, world->size()); });
  const OpenedSource data = open_source_everywhere(plan, *world, Part::train);
  const OpenedSource test = open_source_everywhere(plan, *world, Part::test);
  const int64_t total = total_steps(plan.deck, data.samples);

  std::unique_ptr<RunFolder> folder;
  agree(*world, [&] {
    if (world->rank() == 0) folder = std::make_unique<RunFolder>(plan.deck, options.fresh);
  });
  const std::filesystem::path run_dir =
      world->gather_text(folder ? folder->path().string() : "").front();
  std::optional<std::filesystem::path> checkpoint;
  RunState stored;
  agree(*world, [&] {
    checkpoint = latest_checkpoint(run_dir / "checkpoints");
    if (checkpoint) stored = read_run_state(*checkpoint);
  });
  if (folder) {
    log::add_file(folder->path() / "log.txt");
    folder->write_deck_file(plan.deck);
  }
  if (checkpoint && stored.step >= total) {
    TrainSummary summary;
    summary.run_dir = run_dir.string();
    summary.steps = stored.step;
    summary.was_finished = true;
    return summary;
  }
  const auto say = [&](const std::string& line) {
    if (folder && !options.quiet) log::info(line);
  };
  const std::unique_ptr<Device> device = make_device(plan.deck, *world);
  say(format("{}: {} on {}, {} parameters, {} schedule", run_dir.string(), plan.mesh.text(),
             device->describe(),
             show_count(static_cast<double>(plan.architecture.parameter_count())),
             plan.deck.parallel.schedule));
  say(checkpoint
          ? format("continuing from {} (step {} of {})", checkpoint->string(), stored.step, total)
          : format("starting: {} steps of {} samples, {} pictures to learn from", total,
                   plan.deck.batch.global, show_grouped(data.samples)));
  Communicator& control = *world;
  const int rank = control.rank();
  Links& links = ranks.links = make_plan_links(plan, std::move(world));
  RankContext context(plan, *device, links, rank);
  Training training(plan, control, context, options, folder.get(), run_dir / "checkpoints", data,
                    test, total);
  TrainSummary summary = training.run(checkpoint);
  summary.run_dir = run_dir.string();
  return summary;
}

EvalRecord evaluate_on(Ranks& ranks, const Deck& deck, const std::string& checkpoint) {
  std::unique_ptr<Communicator>& world = ranks.world;
  Plan plan;
  agree(*world, [&] { plan = make_plan(deck, world->size()); });
  const OpenedSource test = open_source_everywhere(plan, *world, Part::test);
  RunState stored;
  agree(*world, [&] { stored = read_run_state(checkpoint); });
  const std::unique_ptr<Device> device = make_device(plan.deck, *world);
  Communicator& control = *world;
  const int rank = control.rank();
  Links& links = ranks.links = make_plan_links(plan, std::move(world));
  RankContext context(plan, *device, links, rank);
  agree(control, [&] { restore(context, checkpoint, Restore::weights); });
  return Evaluator(context, test).run(stored.step);
}

// Communicators that are torn down while an exception flies tell the other ranks that this one
// failed. An error that all ranks share is no such failure: it is carried past their quiet end.
template <class Run>
auto in_step(std::unique_ptr<Communicator> world, Run&& run)
    -> decltype(run(std::declval<Ranks&>())) {
  std::exception_ptr shared;
  {
    Ranks ranks{std::move(world), {}};
    try {
      return run(ranks);
    } catch (const SharedError&) { shared = std::current_exception(); }
  }
  std::rethrow_exception(shared);
}

}  // namespace

TrainSummary train(const Deck& deck, std::unique_ptr<Communicator> world,
                   const TrainOptions& options) {
  return in_step(std::move(world), [&](Ranks& ranks) { return train_on(ranks, deck, options); });
}

EvalRecord evaluate(const Deck& deck, std::unique_ptr<Communicator> world,
                    const std::string& checkpoint) {
  return in_step(std::move(world),
                 [&](Ranks& ranks) { return evaluate_on(ranks, deck, checkpoint); });
}

}  // namespace voltapile
