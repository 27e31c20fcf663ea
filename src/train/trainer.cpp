#include "voltapile/train/trainer.hpp"

#include <algorithm>

#include "voltapile/base/host.hpp"
#include "voltapile/base/log.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/train/status.hpp"

#include "loaded_model.hpp"
#include "run_state.hpp"
#include "start_up.hpp"
#include "training.hpp"

namespace voltapile {

namespace {

// What ties a rank to the others; it outlives everything that communicates. Links go before the
// device: when they are torn down by an exception they let go its lanes, which may wait for others.
struct Ranks {
  std::unique_ptr<Communicator> world;  // until links take it over
  std::unique_ptr<Device> device;
  Links links;

  Communicator& control() { return world ? *world : *links.world; }
};

// Runs what may fail on one rank alone. The others are told before anything is torn down, since
// they, and this rank's own lanes, may be waiting inside a collective.
template <class Run>
auto or_abort(Ranks& ranks, Device& device, Run&& run) -> decltype(run()) {
  try {
    return run();
  } catch (const SharedError&) {
    device.wait_until_idle();  // steps in flight read batches; the other ranks finish them too
    throw;
  } catch (const PeerFailure& echo) {
    device.fail(echo.what());
    device.wait_until_idle();
    throw;
  } catch (const std::exception& error) {
    Communicator& world = ranks.control();
    const auto* known = dynamic_cast<const Error*>(&error);
    const std::string place = world.place.empty() ? format("rank {}", world.rank()) : world.place;
    const std::string message = format("{} on {}: {}", place, host_name(), error.what());
    device.fail(message);
    world.abort(message);
    device.wait_until_idle();
    throw Error(known != nullptr ? known->code() : ExitCode::failure, message);
  }
}

// What all ranks throw alike already.
template <class Work>
auto shared(Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const PeerFailure&) { throw; } catch (const Error& error) {
    throw SharedError(error.code(), error.what());
  }
}

void introduce(Watch& watch, const Plan& plan) {
  watch.set_timeout(plan.deck.run.hang_timeout_seconds);
  std::vector<std::string> places;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) places.push_back(plan.mesh.rank_text(rank));
  watch.set_places(std::move(places));
}

Watch::Subject observe(Watch& watch, const Links& links) {
  return watch.observe([&links](RankState& state) {
    for (const auto* link :
         {&links.tensor, &links.tensor_reduce, &links.data, &links.norm, &links.checkpoint})
      if (*link != nullptr) add_calls(**link, state);
    for (const auto& [edge, link] : links.edges)
      if (link != nullptr) add_calls(*link, state);
  });
}

Watch::Subject give_up_with(Watch& watch, Device& device) {
  return watch.on_hang([&device](const std::string& verdict) { device.fail(verdict); });
}

void refuse_damage(const std::vector<std::string>& damage,
                   const std::filesystem::path& checkpoint) {
  if (damage.empty()) return;
  throw SharedError(ExitCode::bad_data,
                    format("{} is damaged: {}", checkpoint.string(), join(damage, "\n  ")));
}

void warn_of_rewind(const RewindRecord& rewind, const std::optional<std::filesystem::path>& to,
                    const Deck::Run& rules) {
  log::warn(format("after step {} {}", rewind.from_step, rewind.cause));
  log::warn(
      format("rewind {} of {} (run.rewind_limit): going on from {}, with the pictures in "
             "another order",
             rewind.rewinds, rules.rewind_limit,
             to ? format("{} (step {})", to->string(), rewind.step) : "the start"));
}

TrainSummary train_on(Ranks& ranks, const DeckLoader& load, const TrainOptions& options) {
  std::unique_ptr<Communicator>& world = ranks.world;
  Watch watch(*world, options.watch);
  Plan plan;
  agree(*world, [&] {
    plan = make_plan(load(), world->size());
    if (options.check) options.check(plan);
  });
  introduce(watch, plan);
  compare_programs(plan, *world, options.facts);
  const OpenedSource data = open_source_everywhere(plan, *world, Part::train);
  const OpenedSource test = open_source_everywhere(plan, *world, Part::test);
  const int64_t total = total_steps(plan.deck, data.samples);

  std::unique_ptr<RunFolder> folder;
  agree(*world, [&] {
    if (world->rank() == 0) folder = std::make_unique<RunFolder>(plan.deck, options.fresh);
  });
  const std::filesystem::path run_dir =
      world->gather_text(folder ? folder->path().string() : "").front();
  watch.set_folder(run_dir / "hang");
  const std::optional<Chosen> stored = shared([&] {
    return choose_checkpoint(
        run_dir / "checkpoints", *world,
        plan.deck.checkpoint.fallback ? OnDamage::fall_back : OnDamage::refuse);
  });
  bool finished = false;
  agree(*world, [&] {
    finished = is_finished(plan.deck, run_dir, stored ? stored->state.step : 0, total);
  });
  if (const std::filesystem::path init = plan.deck.model.init;
      !stored && std::filesystem::is_directory(init)) {
    refuse_damage(shared([&] { return find_damage(resolve_checkpoint(init), *world); }), init);
  }
  if (folder) log::add_file(folder->path() / "log.txt");
  if (finished) {
    TrainSummary summary;
    summary.run_dir = run_dir.string();
    summary.steps = std::max(stored ? stored->state.step : 0, last_recorded_step(run_dir));
    summary.was_finished = true;
    return summary;
  }
  const auto say = [&](const std::string& line) {
    if (folder && !options.quiet) log::info(line);
  };
  Communicator& control = *world;
  const int rank = control.rank();
  std::unique_ptr<Device>& device = ranks.device;
  TransportChoice transport;
  agree(control, [&] { device = make_device(plan.deck, control, run_dir); });
  compare_machines(plan, control, *device);
  agree(control,
        [&] { transport = choose_transport(control, *device, plan.deck.parallel.transport); });
  say(format("{}: {} on {}, {} parameters, {} schedule", run_dir.string(), plan.mesh.text(),
             device->describe(),
             show_count(static_cast<double>(plan.architecture.parameter_count())),
             plan.deck.parallel.schedule));
  for (const std::string& note : plan.notes) say("  " + note);
  if (!transport.why.empty()) {
    say(format("  parallel.transport = \"auto\" became \"{}\": {}",
               transport.transport == Transport::nccl ? "nccl" : "staged", transport.why));
  }
  say(format("  data.workers: {} to read pictures", reading_threads(plan.deck)));
  for (const std::string& damage : stored ? stored->passed_over : std::vector<std::string>{})
    if (folder) log::warn(damage);
  say(stored ? format("continuing from {} (step {} of {}){}", stored->folder.string(),
                      stored->state.step, total,
                      stored->passed_over.empty() ? "" : ", the newest good one")
             : format("starting: {} steps of {} samples, {} pictures to learn from", total,
                      plan.deck.batch.global, show_grouped(data.samples)));
  if (folder && stored)
    for (const std::string& change : folder->changes()) say("  changed: " + change);
  Links& links = ranks.links =
      make_plan_links(plan, std::move(world), *device, transport.transport);
  const Watch::Subject watched = observe(watch, links), given_up = give_up_with(watch, *device);
  std::unique_ptr<RankContext> context;
  agree(control, [&] {
    context =
        std::make_unique<RankContext>(plan, *device, links, rank, host_threads(plan.deck, control));
  });
  std::optional<std::filesystem::path> from;
  if (stored) from = stored->folder;
  std::optional<RewindRecord> rewind;
  for (;;) {
    std::unique_ptr<Training> training;
    agree(control, [&] {
      training = std::make_unique<Training>(plan, control, *context, watch, options, folder.get(),
                                            run_dir / "checkpoints", data, test, total);
    });
    try {
      TrainSummary summary = or_abort(ranks, *device, [&] { return training->run(from, rewind); });
      summary.run_dir = run_dir.string();
      return summary;
    } catch (const Diverged& diverged) {
      training.reset();  // with what it still writes
      from = shared([&] {
        return rewind_checkpoints(run_dir / "checkpoints", diverged.last_good(), control);
      });
      rewind = diverged.rewind();
      rewind->step = from ? read_run_state(*from).step : 0;
      if (folder) warn_of_rewind(*rewind, from, plan.deck.run);
    }
  }
}

void with_checkpoint_on(Ranks& ranks, const DeckLoader& load, const TrainOptions& options,
                        const OpenPictures& open, const CheckpointNamer& checkpoint_of,
                        const Prepare& prepare) {
  std::unique_ptr<Communicator>& world = ranks.world;
  Watch watch(*world, options.watch);
  Plan plan;
  agree(*world, [&] {
    plan = make_plan(load(), world->size());
    if (options.check) options.check(plan);
  });
  introduce(watch, plan);
  compare_programs(plan, *world, options.facts);
  const OpenedSource pictures = open(plan, *world);
  RunState stored;
  std::filesystem::path checkpoint;
  agree(*world, [&] {
    checkpoint = checkpoint_of();
    stored = read_run_state(checkpoint);
  });
  const std::vector<std::string> damage = shared([&] { return find_damage(checkpoint, *world); });
  refuse_damage(damage, checkpoint);
  Communicator& control = *world;
  const int rank = control.rank();
  std::unique_ptr<Device>& device = ranks.device;
  TransportChoice transport;
  agree(control, [&] { device = make_device(plan.deck, control, {}); });
  compare_machines(plan, control, *device);
  agree(control,
        [&] { transport = choose_transport(control, *device, plan.deck.parallel.transport); });
  Links& links = ranks.links =
      make_plan_links(plan, std::move(world), *device, transport.transport);
  const Watch::Subject watched = observe(watch, links), given_up = give_up_with(watch, *device);
  std::unique_ptr<RankContext> context;
  std::optional<LoadedModel> model;
  std::function<void()> work;
  agree(control, [&] {
    context = std::make_unique<RankContext>(plan, *device, links, rank);
    model.emplace(LoadedModel{*context, control, watch, pictures, checkpoint, stored});
    work = prepare(*model);
    restore(*context, checkpoint, Restore::weights, host_threads(plan.deck, control));
  });
  const StageScope stage(watch, Stage::evaluation);
  or_abort(ranks, *device, [&] {
    work();
    control.barrier();  // as at the end of training
  });
}

// Communicators that are torn down while an exception flies tell the other ranks that this one
// failed. An error that all ranks share is no such failure: it is carried past their quiet end.
template <class Run>
auto in_step(std::unique_ptr<Communicator> world, Run&& run)
    -> decltype(run(std::declval<Ranks&>())) {
  std::exception_ptr shared;
  {
    Ranks ranks{std::move(world), nullptr, {}};
    try {
      return run(ranks);
    } catch (const SharedError&) { shared = std::current_exception(); }
  }
  std::rethrow_exception(shared);
}

}  // namespace

TrainSummary train(const DeckLoader& load, std::unique_ptr<Communicator> world,
                   const TrainOptions& options) {
  return in_step(std::move(world), [&](Ranks& ranks) { return train_on(ranks, load, options); });
}

void with_checkpoint(const DeckLoader& load, std::unique_ptr<Communicator> world,
                     const TrainOptions& options, const OpenPictures& open,
                     const CheckpointNamer& checkpoint_of, const Prepare& prepare) {
  in_step(std::move(world), [&](Ranks& ranks) {
    with_checkpoint_on(ranks, load, options, open, checkpoint_of, prepare);
  });
}

}  // namespace voltapile
