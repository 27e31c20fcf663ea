#include <vector>

#include "voltapile/train/trainer.hpp"

namespace voltapile {

// A vote of one line a rank: "" or "<exit code> <message>".
void agree(Communicator& world, const std::function<void()>& f) {
  std::string vote;
  try {
    f();
  } catch (const Error& error) {
    vote = format("{} {}", static_cast<int>(error.code()), error.what());
  } catch (const std::exception& error) {
    vote = format("{} {}", static_cast<int>(ExitCode::failure), error.what());
  }
  const std::vector<std::string> votes = world.gather_text(vote);
  for (const std::string& text : votes) {
    if (text.empty()) continue;
    const size_t space = text.find(' ');
    throw SharedError(static_cast<ExitCode>(std::stoi(text.substr(0, space))),
                      text.substr(space + 1));
  }
}

}  // namespace voltapile
