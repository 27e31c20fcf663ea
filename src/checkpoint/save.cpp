#include <atomic>
#include <functional>
#include <optional>

#include "voltapile/base/log.hpp"
#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/checkpoint/durable.hpp"

#include "folder.hpp"
#include "index.hpp"
#include "shard.hpp"
#include "task_queue.hpp"
#include "together.hpp"

namespace voltapile {
namespace fs = std::filesystem;
namespace {

// Once a process: what a disk refuses, it refuses at every save.
void tell_refusal(const fs::path& folder, const std::vector<ShardReport>& reports) {
  static std::atomic<bool> told = false;
  for (const ShardReport& report : reports) {
    if (report.refusal.empty() || told.exchange(true)) continue;
    log::warn(
        format("{}: this file system refuses writes past its page cache ({}): saving is "
               "slower, and takes memory of the machine beside checkpoint.pool",
               folder.string(), report.refusal));
  }
}

}  // namespace

fs::path save_checkpoint(const fs::path& checkpoints, Communicator& world, const RunState& state,
                         const std::vector<Parameter>& model, const PieceOwner& owner,
                         const std::vector<Piece>& pieces, const Keep& keep, StateSource* source,
                         const std::function<void()>& when_whole) {
  ViewSource views(pieces);
  StateSource& values = source == nullptr ? views : *source;
  const fs::path folder = checkpoints / step_name(state.step);
  fs::path partial = folder;
  partial += ".partial";
  const auto on_first = [&](const std::function<void()>& work) {
    together(world, [&]() -> std::string {
      if (world.rank() == 0) work();
      return "";
    });
  };

  bool writing = false;
  try {
    on_first([&] {
      // A run folder that somebody removed is not made again: it would hold no deck and no lock.
      if (const fs::path run = fs::absolute(checkpoints).parent_path(); !fs::is_directory(run))
        throw Error(ExitCode::failure, run.string() + ": this folder is gone");
      fs::create_directory(checkpoints);
      tidy(checkpoints);
      fs::create_directory(partial);
    });
    writing = true;
    // A job that fails meanwhile is not to wait for all of this.
    const auto may_go_on = [&] { world.poll_error(); };
    ShardLayout own;
    std::vector<ShardLayout> layouts;
    for (const std::string& answer : together(world, [&] {
           may_go_on();
           own = lay_out_shard(partial, world.rank(), state.step, owner, pieces, values.averaged());
           values.begin(own.order());
           return to_text(own);
         }))
      layouts.push_back(shard_layout(answer));
    std::optional<IndexDraft> index;
    TaskQueue beside;  // HDF5 takes long over the index, and the disk has nothing to do with it
    if (world.rank() == 0) beside.add([&] { index.emplace(partial, state, model, layouts); });
    std::vector<ShardReport> reports;
    for (const std::string& answer : together(
             world, [&] { return to_text(fill_shard(partial, own, pieces, values, may_go_on)); }))
      reports.push_back(shard_report(answer));
    on_first([&] {
      beside.wait(1);
      index->finish(reports);
      tell_refusal(partial, reports);
      sync_folder(partial);
      publish_step(checkpoints, state.step);
    });
    if (when_whole) when_whole();
    on_first([&] { prune(checkpoints, keep); });
  } catch (const PeerFailure&) {
    throw;  // others may still write there
  } catch (const Error& error) {
    // Every rank has given up by now, so nobody writes there any more.
    std::error_code ignored;
    if (writing && world.rank() == 0) fs::remove_all(partial, ignored);
    throw Error(ExitCode::failure,
                format("checkpoint {} was not written: {}", folder.string(), error.what()));
  }
  return folder;
}

}  // namespace voltapile
