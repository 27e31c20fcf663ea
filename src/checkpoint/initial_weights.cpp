#include "voltapile/checkpoint/initial_weights.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/model/chunk_model.hpp"

#include "fit.hpp"
#include "whole.hpp"

namespace voltapile {
namespace {

using ReadTensor = std::function<void(const safetensors::Tensor&, float*)>;

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

std::vector<float> values_of(const WeightSource& source, const Architecture& architecture,
                             uint64_t seed, const ReadTensor& read) {
  const Parameter& parameter = *source.parameter;
  std::vector<float> values;
  if (source.parts.empty()) {
    values.resize(static_cast<size_t>(parameter.shape.elements()));
    initial_values(architecture, parameter, seed, 1, 0, 0,
                   {values.data(), DType::f32, parameter.shape});
    return values;
  }
  for (const safetensors::Tensor* part : source.parts) {
    const size_t begin = values.size();
    values.resize(begin + static_cast<size_t>(part->shape.elements()));
    read(*part, values.data() + begin);
  }
  if (source.position) values = position_values(architecture, *source.position, values);
  VP_CHECK(static_cast<int64_t>(values.size()) == parameter.shape.elements(), "{} values for {} {}",
           values.size(), parameter.name, parameter.shape.text());
  return values;
}

}  // namespace

struct InitialWeights::Impl {
  Impl(const std::filesystem::path& from, const Architecture& a, uint64_t number, Digests digests)
      : architecture(a), seed(number) {
    if (std::filesystem::is_directory(from)) {
      const std::filesystem::path folder = resolve_checkpoint(from);
      tensors.emplace(folder, digests);
      layout = safetensors_layout(*tensors, folder, DType::f32);
    } else {
      file.emplace(from);
      layout = file->layout();
    }
    fit = fit_weights(layout, architecture);
  }
  void read(const safetensors::Tensor& tensor, float* values) {
    if (file) return file->read(tensor, values);
    const std::vector<float> whole = tensors->read("master", tensor.name);
    std::copy(whole.begin(), whole.end(), values);
  }

  const Architecture& architecture;
  uint64_t seed;
  std::optional<safetensors::Reader> file;
  std::optional<WholeTensors> tensors;
  safetensors::Layout layout;
  Fit fit;  // points into the layout and the architecture
};

InitialWeights::InitialWeights(const std::filesystem::path& from, const Architecture& architecture,
                               uint64_t seed, const std::string& deck, Digests digests)
    : impl_(std::make_unique<Impl>(from, architecture, seed, digests)) {
  if (impl_->fit.faults.empty()) return;
  throw Error(ExitCode::bad_data, format("{} does not fit the model of {}:\n  {}", from.string(),
                                         deck, join(impl_->fit.faults, "\n  ")));
}
InitialWeights::~InitialWeights() = default;

const std::vector<std::string>& InitialWeights::notes() const { return impl_->fit.notes; }

std::vector<float> InitialWeights::read(const Parameter& parameter) {
  const auto& sources = impl_->fit.sources;
  const auto source = std::find_if(sources.begin(), sources.end(), [&](const WeightSource& s) {
    return s.parameter->name == parameter.name;
  });
  VP_CHECK(source != sources.end(), "{} is not of this model", parameter.name);
  return values_of(*source, impl_->architecture, impl_->seed,
                   [this](const auto& tensor, float* values) { impl_->read(tensor, values); });
}

}  // namespace voltapile
