#include <functional>

#include <nlohmann/json.hpp>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/checkpoint/durable.hpp"

#include "folder.hpp"
#include "index.hpp"
#include "shard.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

// Runs this rank's part of a stage. All ranks learn every answer, and every fault: one rank's fault
// ends the stage on all of them with the same Error, that of the lowest rank, and nobody waits for
// a rank that gave up.
std::vector<std::string> together(Communicator& world, const std::function<std::string()>& part) {
  nlohmann::json mine;
  try {
    mine = {{"answer", part()}};
  } catch (const Error& error) {
    mine = {{"fault", error.what()}, {"code", static_cast<int>(error.code())}};
  } catch (const std::exception& error) {
    mine = {{"fault", error.what()}, {"code", static_cast<int>(ExitCode::failure)}};
  }
  // A path or a message of the system need not be UTF-8.
  const auto replace = nlohmann::json::error_handler_t::replace;
  const std::vector<std::string> texts = world.gather_text(mine.dump(-1, ' ', false, replace));
  std::vector<std::string> answers;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto json = nlohmann::json::parse(texts[rank]);
    if (json.contains("fault")) {
      const std::string fault = json.at("fault");
      throw Error(static_cast<ExitCode>(json.at("code").get<int>()),
                  texts.size() == 1 ? fault : format("rank {}: {}", rank, fault));
    }
    answers.push_back(json.at("answer"));
  }
  return answers;
}

}  // namespace

fs::path save_checkpoint(const fs::path& checkpoints, Communicator& world, const RunState& state,
                         const std::vector<Parameter>& model, const PieceOwner& owner,
                         const std::vector<Piece>& pieces, int64_t keep_last) {
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
      fs::create_directories(checkpoints);
      tidy(checkpoints);
      fs::create_directory(partial);
    });
    writing = true;
    const std::vector<std::string> answers = together(world, [&] {
      // A job that fails meanwhile is not to wait for all of this.
      return to_text(write_shard(partial, world.rank(), state.step, owner, pieces,
                                 [&] { world.poll_error(); }));
    });
    on_first([&] {
      std::vector<ShardReport> reports;
      for (const std::string& answer : answers) reports.push_back(shard_report(answer));
      write_index(partial, state, model, reports);
      sync_folder(partial);
      publish_step(checkpoints, state.step);
      prune(checkpoints, keep_last);
    });
  } catch (const PeerFailure&) {
    throw;  // others may still write there
  } catch (const Error& error) {
    // Every rank has given up by now, so nobody writes there any more.
    std::error_code ignored;
    if (writing && world.rank() == 0) fs::remove_all(partial, ignored);
    throw Error(error.code(),
                format("checkpoint {} was not written: {}", folder.string(), error.what()));
  }
  return folder;
}

}  // namespace voltapile
