#include <vector>

#include "voltapile/base/host.hpp"
#include "voltapile/train/trainer.hpp"

namespace voltapile {

namespace {

// A vote of one rank: "" or "<exit code> <who>\n<message>".
std::string vote_of(const Communicator& world, ExitCode code, const char* message) {
  const std::string place = world.place.empty() ? format("rank {}", world.rank()) : world.place;
  return format("{} {} on {}\n{}", static_cast<int>(code), place, host_name(), message);
}

}  // namespace

void agree(Communicator& world, const std::function<void()>& f) {
  std::string vote;
  try {
    f();
  } catch (const Error& error) {
    vote = vote_of(world, error.code(), error.what());
  } catch (const std::exception& error) { vote = vote_of(world, ExitCode::failure, error.what()); }
  const std::vector<std::string> votes = world.gather_text(vote);
  for (const std::string& text : votes) {
    if (text.empty()) continue;
    const size_t space = text.find(' '), line = text.find('\n');
    // What the first rank meets, it meets for all; another one alone has a node of its own kind.
    const std::string who =
        votes.front().empty() ? text.substr(space + 1, line - space - 1) + ": " : "";
    throw SharedError(static_cast<ExitCode>(std::stoi(text.substr(0, space))),
                      who + text.substr(line + 1));
  }
}

}  // namespace voltapile
