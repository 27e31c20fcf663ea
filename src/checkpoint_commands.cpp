#include "checkpoint_commands.hpp"

#include <filesystem>
#include <iostream>

#include "voltapile/base/units.hpp"
#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/plan/plan.hpp"
#include "voltapile/train/import_run.hpp"

namespace voltapile {

ExitCode verify(const std::string& named, Depth depth) {
  const std::filesystem::path folder = resolve_checkpoint(named);
  const Verification found = verify_checkpoint(folder, depth);
  if (!found.faults.empty()) {
    throw Error(ExitCode::bad_data,
                format("{} is damaged:\n  {}", folder.string(), join(found.faults, "\n  ")));
  }
  std::cout << format("{}: good. {} tensors in {} shard{}, {}.\n", folder.string(), found.tensors,
                      found.shards, found.shards == 1 ? "" : "s",
                      show_bytes(static_cast<double>(found.bytes)));
  if (depth == Depth::datasets)
    std::cout << (found.datasets > 0
                      ? format("{} pieces of tensors, each as it was saved.\n", found.datasets)
                      : "Format version 1: digests of whole files alone.\n");
  return ExitCode::done;
}

ExitCode export_file(const std::string& folder, const std::string& file, DType type) {
  const Exported written = export_weights(resolve_checkpoint(folder), file, type);
  std::cout << format("{}: {} tensors, {}\n", file, written.tensors,
                      show_bytes(static_cast<double>(written.bytes)));
  return ExitCode::done;
}

ExitCode import_file(const std::string& file, const Deck& deck, bool fresh) {
  const Imported imported = import_run(file, make_plan(deck).deck, fresh);
  for (const std::string& note : imported.notes) std::cout << note << "\n";
  std::cout << format("{}: step 0 of a run; `train` with the same deck continues it\n",
                      imported.checkpoint.string());
  return ExitCode::done;
}

ExitCode show_difference(const std::string& a, const std::string& b, Compared what) {
  const CheckpointDifference difference =
      compare_checkpoints(resolve_checkpoint(a), resolve_checkpoint(b), what);
  std::cout << describe(difference);
  return difference.equal() ? ExitCode::done : ExitCode::bad_data;
}

}  // namespace voltapile
