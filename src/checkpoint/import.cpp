#include <algorithm>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/checkpoint/initial_weights.hpp"
#include "voltapile/checkpoint/interchange.hpp"
#include "voltapile/comm/communicator.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/optim/optim.hpp"

namespace voltapile {
namespace {

std::filesystem::path save_first(const std::filesystem::path& checkpoints, const Deck& deck,
                                 const std::vector<Parameter>& model,
                                 std::vector<std::vector<float>>& values) {
  size_t longest = 0;
  for (const auto& one : values) longest = std::max(longest, one.size());
  std::vector<float> zeros(longest, 0.0f);  // all moments
  std::vector<Piece> pieces;
  for (size_t i = 0; i < model.size(); ++i) {
    const auto elements = static_cast<int64_t>(values[i].size());
    const TensorView zero{zeros.data(), DType::f32, {elements}};
    pieces.push_back({.parameter = &model[i],
                      .begin = 0,
                      .end = elements,
                      .master = {values[i].data(), DType::f32, {elements}},
                      .m = zero,
                      .v = zero});
  }
  const RunState state{.seed = deck.run.seed,
                       .loss_scale = first_loss_scale(deck.precision),
                       .deck = write_deck(deck)};
  return save_checkpoint(checkpoints, *make_solo(), state, model, {}, pieces, {});
}

}  // namespace

Imported import_weights(const std::filesystem::path& file, const Deck& deck,
                        const std::function<std::filesystem::path()>& open_checkpoints) {
  if (!deck.model.init.empty()) {
    throw Error(ExitCode::bad_input,
                format("{}: model.init = \"{}\" names the first weights as well: leave it out, or "
                       "train without importing",
                       deck.path, deck.model.init));
  }
  const Architecture architecture = make_architecture(deck);
  InitialWeights weights(file, architecture, deck.run.seed, deck.path, Digests::compare);
  std::vector<Parameter> model;
  std::vector<std::vector<float>> values;
  for (const Layer& layer : architecture.layers) {
    for (const Parameter& parameter : layer.parameters) {
      model.push_back(parameter);
      values.push_back(weights.read(parameter));
    }
  }
  return {save_first(open_checkpoints(), deck, model, values), weights.notes()};
}

}  // namespace voltapile
