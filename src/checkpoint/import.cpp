#include <algorithm>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/checkpoint/interchange.hpp"
#include "voltapile/comm/communicator.hpp"
#include "voltapile/deck/parse.hpp"
#include "voltapile/model/chunk_model.hpp"
#include "voltapile/optim/optim.hpp"

#include "fit.hpp"

namespace voltapile {
namespace {

// The table's rows for this model: the class token's, if it has one, then the grid's.
std::vector<float> position_values(const Architecture& architecture, const PositionRows& rows,
                                   const std::vector<float>& table) {
  const int64_t channels = architecture.model.dim;
  const Grid own{architecture.grid_height(), architecture.grid_width()};
  const float* const grid = table.data() + rows.prefix * channels;
  std::vector<float> values;
  if (architecture.model.pool == Pool::token) {
    // Without a row of its own nothing was added to the class token.
    if (rows.prefix == 1) values.assign(table.data(), grid);
    else values.assign(static_cast<size_t>(channels), 0.0f);
  }
  if (rows.grid == own) {
    values.insert(values.end(), grid, grid + own.cells() * channels);
  } else {
    const std::vector<float> resized = resample(grid, rows.grid, own, channels);
    values.insert(values.end(), resized.begin(), resized.end());
  }
  return values;
}

std::vector<float> values_of(const Source& source, const Architecture& architecture, uint64_t seed,
                             safetensors::Reader& file) {
  const Parameter& parameter = *source.parameter;
  std::vector<float> values;
  if (source.parts.empty()) {
    values.resize(static_cast<size_t>(parameter.shape.elements()));
    initial_values(architecture, parameter, seed, 1, 0,
                   {values.data(), DType::f32, parameter.shape});
    return values;
  }
  for (const safetensors::Tensor* part : source.parts) {
    const size_t begin = values.size();
    values.resize(begin + static_cast<size_t>(part->shape.elements()));
    file.read(*part, values.data() + begin);
  }
  if (source.position) values = position_values(architecture, *source.position, values);
  VP_CHECK(static_cast<int64_t>(values.size()) == parameter.shape.elements(), "{} values for {} {}",
           values.size(), parameter.name, parameter.shape.text());
  return values;
}

std::filesystem::path save_first(const std::filesystem::path& checkpoints, const Deck& deck,
                                 const std::vector<Source>& sources,
                                 std::vector<std::vector<float>>& values) {
  size_t longest = 0;
  for (const auto& one : values) longest = std::max(longest, one.size());
  std::vector<float> zeros(longest, 0.0f);  // all moments
  std::vector<Parameter> model;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto elements = static_cast<int64_t>(values[i].size());
    const TensorView zero{zeros.data(), DType::f32, {elements}};
    model.push_back(*sources[i].parameter);
    pieces.push_back({.parameter = sources[i].parameter,
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
  safetensors::Reader reader(file);
  const Architecture architecture = make_architecture(deck);
  Fit fit = fit_weights(reader.layout(), architecture);
  if (!fit.faults.empty()) {
    throw Error(ExitCode::bad_data, format("{} does not fit the model of {}:\n  {}", file.string(),
                                           deck.path, join(fit.faults, "\n  ")));
  }
  std::vector<std::vector<float>> values;
  for (const Source& source : fit.sources)
    values.push_back(values_of(source, architecture, deck.run.seed, reader));
  return {save_first(open_checkpoints(), deck, fit.sources, values), std::move(fit.notes)};
}

}  // namespace voltapile
