#include "together.hpp"

#include <nlohmann/json.hpp>

namespace voltapile {

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

}  // namespace voltapile
