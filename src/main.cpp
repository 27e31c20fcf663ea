// voltapile: the command line. Parses it, calls the modules, prints errors once and returns
// DESIGN's exit codes.
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>

#include <CLI/CLI.hpp>

#include "voltapile/base/clock.hpp"
#include "voltapile/base/error.hpp"
#include "voltapile/base/host.hpp"
#include "voltapile/base/log.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/base/version.hpp"
#include "voltapile/bench/bench.hpp"
#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/comm/mpi.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/forecast/fit.hpp"
#include "voltapile/forecast/forecast.hpp"
#include "voltapile/submit/submit.hpp"
#include "voltapile/trace/describe.hpp"
#include "voltapile/train/status.hpp"
#include "voltapile/train/stop_request.hpp"
#include "voltapile/train/trainer.hpp"

#include "checkpoint_commands.hpp"
#include "command_line.hpp"
#include "inference_commands.hpp"
#include "node_commands.hpp"
#include "plan_command.hpp"
#include "report_command.hpp"

namespace voltapile {
namespace {

struct Arguments {
  std::string program, deck, folder, checkpoint, other, weights;
  std::vector<std::string> overrides;
  bool fresh = false;
  SubmitOptions submit;
  bool go = false;
  double began = 0;
  BenchOptions bench;
  std::string hardware;       // to read
  std::string hardware_file;  // to write
  DType export_type = DType::f32;
  Depth depth = Depth::files;
  Compared compared = Compared::weights;
  ReportArguments report;
  std::string pictures, out = ".";  // of predict
};

constexpr const char* kExamples = R"(
A first run:     jobscripts/quickstart.sh
Look before:     voltapile plan input_decks/quickstart.toml
Train:           mpirun -n $(voltapile ranks DECK) voltapile train DECK
Change one key:  voltapile plan DECK --set parallel.tensor=2 --set batch.micro=4
Go on:           the same train command continues an unfinished run from its last checkpoint

A deck is a TOML file; input_decks/README.md explains every key. A run lives in runs/<name>/.

Exit codes: 0 done | 2 the deck or the command line is wrong | 3 it will not fit in memory
            4 bad data or checkpoint | 5 a rank or a device failed
            75 stopped early on purpose after a checkpoint: submit the same command again)";

ExitCode show_ranks(const Arguments& arguments) {
  std::cout << ranks_of(load_deck(arguments.deck, arguments.overrides)) << "\n";
  return ExitCode::done;
}

// For people and for job scripts: one fact a line, and the exit code says whether work is left.
ExitCode show_status(const Arguments& arguments) {
  const Deck deck = load_deck(arguments.deck, arguments.overrides);
  const RunStatus status = status_of(deck);
  const auto row = [](const char* name, const auto& value) {
    std::cout << format("{:<11} {}\n", name, value);
  };
  row("state", status.finished ? "finished" : "unfinished");
  row("name", deck.run.name);
  row("folder", status.folder.string());
  row("saved", status.saved);
  row("recorded", status.recorded);
  row("steps", status.total);
  if (status.checkpoint) row("checkpoint", status.checkpoint->string());
  return status.finished ? ExitCode::done : ExitCode::stopped_early;
}

ExitCode show_submission(Arguments arguments) {
  const Plan plan = make_plan(load_deck(arguments.deck, arguments.overrides));
  require_possible(plan);
  require_fit(plan);
  SubmitOptions& options = arguments.submit;
  options.deck = arguments.deck;
  options.overrides = arguments.overrides;
  const std::string executable = own_executable();
  options.jobscripts = find_jobscripts(executable);
  options.program = program_for_jobs(executable, options.jobscripts);
  const Submission submission = make_submission(plan, options, look_at_cluster());
  for (const std::string& note : submission.notes) std::cout << "# " << note << "\n";
  std::cout << submission.line() << std::endl;
  if (arguments.go) submit(submission);
  return ExitCode::done;
}

void print_summary(const Arguments& arguments, int ranks, const TrainSummary& summary) {
  const auto row = [](const std::string& name, const std::string& text) {
    log::info(format("  {:<14}{}", name, text));
  };
  log::info("");
  if (summary.was_finished) {
    log::info(
        format("{} is finished: {} steps. Raise run.steps or run.epochs to go on, or start over "
               "with --fresh.",
               summary.run_dir, summary.steps));
    return;
  }
  if (summary.code == ExitCode::stopped_early) {
    log::info(
        format("stopped early after step {}; a checkpoint was saved. The same command continues.",
               summary.steps));
  }
  if (summary.evaluation) {
    row("test accuracy",
        format("{:.2f} % top-1, {:.2f} % top-5 of {} pictures", 100 * summary.evaluation->top1,
               100 * summary.evaluation->top5, show_grouped(summary.evaluation->samples)));
    row("test loss", format("{:.4f}", summary.evaluation->loss));
  }
  row("training", format("{} steps, loss {:.4f}, {} in this session", show_grouped(summary.steps),
                         summary.loss, show_seconds(summary.seconds)));
  bool first = true;
  for (const std::string& line : describe(summary.timers, summary.seconds)) {
    row(first ? "rank 0's time" : "", line);
    first = false;
  }
  if (summary.recordings.count > 0)
    row("replayed", format("{} kernels in {} recordings",
                           show_grouped(static_cast<int64_t>(summary.recordings.kernels)),
                           summary.recordings.count));
  if (summary.rewinds > 0)
    row("rewinds", format("{}: the run diverged and went back", summary.rewinds));
  row("run folder", summary.run_dir);
  std::string deck = shell_word(arguments.deck);
  for (const std::string& text : arguments.overrides) deck += " --set " + shell_word(text);
  log::info(format(
      "\nNext:\n  {0} verify {1}\n  mpirun -n {2} {0} eval {3}\n"
      "  python3 -c \"import h5py; print(h5py.File('{4}/metrics.h5')['train/loss'][-5:])\"",
      shell_word(arguments.program), shell_word(summary.run_dir), ranks, deck, summary.run_dir));
}

DeckLoader loader(const Arguments& arguments) {
  return [&arguments] { return load_deck(arguments.deck, arguments.overrides); };
}

ExitCode run_training(const Arguments& arguments, MpiSession& session) {
  catch_stop_signals();
  const TrainOptions options{.fresh = arguments.fresh,
                             .check = require_trainable,
                             .began = arguments.began,
                             .watch = watch_options(session),
                             .facts = launcher_facts()};
  const TrainSummary summary = train(loader(arguments), session.world(), options);
  if (session.rank() == 0) print_summary(arguments, session.size(), summary);
  return summary.code;
}

ExitCode run_evaluation(const Arguments& arguments, MpiSession& session) {
  return evaluate_checkpoint(loader(arguments), arguments.checkpoint, session);
}

ExitCode run_benchmark(const Arguments& arguments, MpiSession& session) {
  const BenchResult result = run_bench(arguments.bench, session.world());
  if (session.rank() != 0) return ExitCode::done;
  std::cout << describe(result) << std::flush;
  if (arguments.hardware_file.empty()) return ExitCode::done;
  std::ofstream file(arguments.hardware_file);
  file << hardware_file(result) << std::flush;
  if (!file)
    throw Error(ExitCode::failure, format("{} could not be written", arguments.hardware_file));
  return ExitCode::done;
}

int as_int(ExitCode code) { return static_cast<int>(code); }

// Runs a command that needs ranks. An error that all ranks share is printed by rank 0; any other
// ends the job.
int run_with_mpi(int argc, char** argv, const std::function<ExitCode(MpiSession&)>& command) {
  std::optional<MpiSession> started;
  try {
    started.emplace(&argc, &argv);
  } catch (const Error& error) {
    log::error(format("error: {}", error.what()));
    return as_int(error.code());
  }
  MpiSession& session = *started;
  log::set_rank(session.rank());
  const auto share = [&](const Error& error) {
    if (session.rank() == 0) log::error(format("error: {}", error.what()));
    // Nobody leaves with a failure before rank 0 has spoken: the first exit ends the job.
    session.world()->barrier();
    return as_int(error.code());
  };
  try {
    return as_int(command(session));
  } catch (const SharedError& error) { return share(error); } catch (const PeerFailure& echo) {
    // The rank with the cause says it; this one's silence keeps it the last line.
    session.abort(as_int(echo.code()));
  } catch (const Error& error) {
    log::error(format("error: {}", error.what()));
    session.abort(as_int(error.code()));
  } catch (const std::exception& error) {
    log::error(format("error: {}", error.what()));
    session.abort(as_int(ExitCode::failure));
  }
}

void add_submit_options(CLI::App& command, Arguments& arguments) {
  SubmitOptions& options = arguments.submit;
  command.add_flag("--go", arguments.go, "run the line as well");
  command.add_option("--time", options.time, "limit of one allocation: 30m, 71h30m, 2d");
  command.add_option("--partition", options.partition, "partition, or queue under PBS and LSF");
  command.add_option("--account", options.account, "who pays");
  command.add_option("--gpus-per-node", options.gpus_per_node, "GPUs of a node; one rank has one")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--tasks-per-node", options.tasks_per_node, "most ranks on a node")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--cpus-per-task", options.cpus_per_task, "CPUs of a rank")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--mem", options.memory, "memory of a node, in the queue's own units");
  command.add_option("--queue", options.queue,
                     "slurm, pbs or lsf; default: whose commands are here");
  command.add_option("--more", options.more,
                     "one more word for sbatch, qsub or bsub: --more=--constraint=v100; may be "
                     "repeated");
}

void add_type_option(CLI::App& command, DType& type) {
  add_choice<DType>(command, "--type", type,
                    {{"f16", DType::f16}, {"bf16", DType::bf16}, {"f32", DType::f32}},
                    "f16, bf16 or f32; default: f32");
}

int run(int argc, char** argv) {
  CLI::App app(
      "voltapile trains Vision Transformers too large for the GPUs at hand: pipeline x data x "
      "tensor\n"
      "parallel, planned to the byte before it starts.");
  app.footer(kExamples);
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  Arguments arguments;
  arguments.began = now_seconds();
  arguments.program = argc > 0 ? argv[0] : "voltapile";
  const auto with_deck = [&](CLI::App* command) {
    command->add_option("deck", arguments.deck, "the input deck (TOML)")->required();
    command->add_option("--set", arguments.overrides,
                        "section.key=value: overrides one key; may be repeated");
    return command;
  };
  CLI::App* train =
      with_deck(app.add_subcommand("train", "train, or continue an unfinished run (under mpirun)"));
  train->add_flag("--fresh", arguments.fresh, "start over in a new numbered folder");
  CLI::App* eval = with_deck(
      app.add_subcommand("eval", "evaluate a checkpoint on the test part (under mpirun)"));
  eval->add_option("--checkpoint", arguments.checkpoint,
                   "a step folder or a run folder; default: the run's latest");
  CLI::App* plan = with_deck(
      app.add_subcommand("plan", "show mesh, chunks, schedule, memory and cost; runs nothing"));
  plan->add_option("--hardware", arguments.hardware,
                   "a file that `voltapile bench --write` made on the machine that will train");
  CLI::App* ranks = with_deck(app.add_subcommand("ranks", "print how many ranks the deck needs"));
  CLI::App* status = with_deck(app.add_subcommand(
      "status", "how far the deck's run is; exit code 0 when it is finished, else 75"));
  CLI::App* doctor = app.add_subcommand(
      "doctor", "look at this node: GPUs, limits, MPI, variables; exit code 5 for a problem");
  CLI::App* submit = with_deck(app.add_subcommand(
      "submit", "print the line that hands the run to this cluster's queue, or run it (--go)"));
  add_submit_options(*submit, arguments);
  const auto with_checkpoint = [](CLI::App* command, const char* name, std::string& folder) {
    command->add_option(name, folder, "a step folder, or a run folder (its latest)")->required();
    return command;
  };
  with_checkpoint(
      app.add_subcommand("verify", "prove that a checkpoint is whole, or say what is wrong"),
      "folder", arguments.folder)
      ->add_flag_callback(
          "--deep", [&] { arguments.depth = Depth::datasets; },
          "also read each tensor's pieces by name and compare their values' digests");
  CLI::App* predict = with_checkpoint(
      app.add_subcommand("predict",
                         "write the most probable classes of pictures without labels "
                         "(under mpirun, or on one rank)"),
      "folder", arguments.folder);
  predict
      ->add_option("pictures", arguments.pictures,
                   "a folder of PNG and JPEG pictures, or an IDX file, plain or gzipped")
      ->required();
  predict->add_option("--out", arguments.out,
                      "folder for predictions.csv and predictions.h5; default: here");
  predict->add_option("--set", arguments.overrides,
                      "section.key=value of the checkpoint's deck: overrides one key");
  CLI::App* save = with_checkpoint(
      app.add_subcommand("export", "write a checkpoint's weights as a safetensors file"), "folder",
      arguments.folder);
  save->add_option("file", arguments.weights, "the file to write")->required();
  add_type_option(*save, arguments.export_type);
  CLI::App* import = app.add_subcommand(
      "import", "start a run from the weights of a safetensors file (timm's or HuggingFace's ViT)");
  import->add_option("file", arguments.weights, "the file to read")->required();
  with_deck(import)->add_flag("--fresh", arguments.fresh, "in a new numbered folder");
  CLI::App* diff = with_checkpoint(
      app.add_subcommand("diff", "compare two checkpoints; exit code 0 when equal, else 4"), "A",
      arguments.folder);
  with_checkpoint(diff, "B", arguments.other);
  diff->add_flag_callback(
      "--moments", [&] { arguments.compared = Compared::weights_and_moments; },
      "the optimizer's moments as well as the weights");
  CLI::App* look = app.add_subcommand(
      "report", "what a run did and where its time went, with advice: tables, or a page");
  look->add_option("folder", arguments.report.folder, "a run folder")->required();
  look->add_option("other", arguments.report.other, "a second run, to compare");
  look->add_option("--html", arguments.report.html, "write one self-contained page");
  look->add_option("--perfetto", arguments.report.perfetto,
                   "write the trace for ui.perfetto.dev (JSON)");
  look->add_option("--hardware", arguments.report.hardware,
                   "a hardware file: arithmetic as a share of what bench measured");
  look->add_flag("--follow", arguments.report.follow, "again whenever the run goes on");
  CLI::App* bench = app.add_subcommand(
      "bench", "measure this machine, every kernel and a training step (may be under mpirun)");
  add_choice<DeviceKind>(*bench, "--device", arguments.bench.device,
                         {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}},
                         "cpu or cuda; default: cpu");
  add_type_option(*bench, arguments.bench.type);
  bench
      ->add_option("--only", arguments.bench.only,
                   "names of kernels, with commas between: no others")
      ->delimiter(',');
  bench->add_option("--disk", arguments.bench.disk,
                    "a folder whose disk to measure, by 2 GB of each rank");
  bench->add_option("--write", arguments.hardware_file, "write a hardware file (TOML)");
  bench->add_flag("--quick", arguments.bench.quick, "small shapes: whether it works, not how fast");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Below mpirun every rank comes here: the first one speaks.
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
      const char* rank = std::getenv(name);
      if (rank != nullptr && std::string(rank) != "0") return as_int(ExitCode::bad_input);
    }
    if (error.get_exit_code() != 0 && argc > 1 && app.get_subcommands().empty()) {
      log::error(format("error: {}: no such command; `voltapile --help` lists them", argv[1]));
      return as_int(ExitCode::bad_input);
    }
    return app.exit(error) == 0 ? 0 : as_int(ExitCode::bad_input);
  }
  if (train->parsed())
    return run_with_mpi(argc, argv, [&](MpiSession& s) { return run_training(arguments, s); });
  if (eval->parsed())
    return run_with_mpi(argc, argv, [&](MpiSession& s) { return run_evaluation(arguments, s); });
  if (predict->parsed())
    return run_with_mpi(argc, argv, [&](MpiSession& s) {
      return predict_pictures(
          {arguments.folder, arguments.pictures, arguments.out, arguments.overrides}, s);
    });
  if (bench->parsed())
    return run_with_mpi(argc, argv, [&](MpiSession& s) { return run_benchmark(arguments, s); });
  try {
    if (plan->parsed())
      return as_int(show_plan(arguments.deck, arguments.overrides, arguments.hardware));
    if (ranks->parsed()) return as_int(show_ranks(arguments));
    if (doctor->parsed()) return as_int(show_node());
    if (status->parsed()) return as_int(show_status(arguments));
    if (submit->parsed()) return as_int(show_submission(arguments));
    if (save->parsed())
      return as_int(export_file(arguments.folder, arguments.weights, arguments.export_type));
    if (import->parsed())
      return as_int(import_file(arguments.weights, load_deck(arguments.deck, arguments.overrides),
                                arguments.fresh));
    if (diff->parsed())
      return as_int(show_difference(arguments.folder, arguments.other, arguments.compared));
    if (look->parsed()) return as_int(report(arguments.report));
    return as_int(verify(arguments.folder, arguments.depth));
  } catch (const Error& error) {
    log::error(format("error: {}", error.what()));
    return as_int(error.code());
  } catch (const std::exception& error) {
    log::error(format("error: {}", error.what()));
    return as_int(ExitCode::failure);
  }
}

}  // namespace
}  // namespace voltapile

int main(int argc, char** argv) { return voltapile::run(argc, argv); }
