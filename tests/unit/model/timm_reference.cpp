#include "timm_reference.hpp"

#include <cstring>
#include <fstream>
#include <sstream>

namespace voltapile::test {

TimmReference::TimmReference(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  VP_CHECK(std::getline(file, line) && line == "voltapile-timm-reference 1", "{} is no reference",
           path.string());
  while (std::getline(file, line) && line != "data") {
    std::istringstream words(line);
    std::string kind, name;
    words >> kind >> name;
    if (kind == "value") {
      for (double number; words >> number;) values_[name].push_back(number);
    } else {
      Entry& entry = tensors_[name];
      words >> entry.type >> entry.offset;
      for (int64_t dim; words >> dim;) entry.dims.push_back(dim);
    }
  }
  data_.assign(std::istreambuf_iterator<char>(file), {});
}

const std::vector<double>& TimmReference::values(const std::string& name) const {
  VP_CHECK(values_.contains(name), "the reference has no value {}", name);
  return values_.at(name);
}

int64_t TimmReference::Entry::elements() const {
  int64_t product = 1;
  for (int64_t dim : dims) product *= dim;
  return product;
}

const TimmReference::Entry& TimmReference::entry(const std::string& name) const {
  VP_CHECK(has(name), "the reference has no tensor {}", name);
  const Entry& entry = tensors_.at(name);
  const size_t size = entry.type == "u8" ? 1 : 4;
  VP_CHECK(entry.offset + static_cast<size_t>(entry.elements()) * size <= data_.size(),
           "the reference ends inside {}", name);
  return entry;
}

std::vector<double> TimmReference::tensor(const std::string& name) const {
  const Entry& e = entry(name);
  VP_CHECK(e.type == "f32", "{} is of type {}", name, e.type);
  std::vector<float> stored(static_cast<size_t>(e.elements()));
  std::memcpy(stored.data(), data_.data() + e.offset, stored.size() * sizeof(float));
  return {stored.begin(), stored.end()};
}

Values TimmReference::tensors_under(const std::string& prefix) const {
  Values found;
  for (const auto& [name, e] : tensors_)
    if (name.starts_with(prefix + "/")) found[name.substr(prefix.size() + 1)] = tensor(name);
  return found;
}

Deck TimmReference::deck() const {
  Deck deck;
  const auto whole = [&](const char* name, size_t i = 0) {
    return static_cast<int64_t>(values(name)[i]);
  };
  deck.model.image = {whole("image", 0), whole("image", 1)};
  deck.model.patch = {whole("patch", 0), whole("patch", 1)};
  deck.model.channels = whole("channels");
  deck.model.dim = whole("dim");
  deck.model.depth = whole("depth");
  deck.model.heads = whole("heads");
  deck.model.mlp = whole("mlp");
  deck.model.classes = whole("classes");
  deck.model.pool = whole("token") != 0 ? Pool::token : Pool::mean;
  deck.model.position = Position::learned;
  deck.model.qkv_bias = whole("qkv_bias") != 0;
  deck.model.layer_scale = value("layer_scale");
  deck.model.qk_norm = whole("qk_norm") != 0;
  deck.loss.label_smoothing = value("smoothing");
  deck.optimizer.layer_decay = value_or("layer_decay", 1);
  for (int layer = 0; layer < value_or("frozen_layers", 0); ++layer) {
    auto& freeze = deck.optimizer.freeze;
    if (layer == 0) freeze = {"cls_token", "pos_embed", "patch_embed.*"};
    else freeze.push_back(format("blocks.{}.*", layer - 1));
  }
  return deck;
}

int64_t TimmReference::steps() const { return entry("pictures").dims[0]; }
int64_t TimmReference::samples() const { return entry("pictures").dims[1]; }

template <class Stored, class T>
void TimmReference::copy_step(const std::string& name, int64_t step, std::vector<T>& out) const {
  const Entry& e = entry(name);
  const auto count = static_cast<size_t>(e.elements() / e.dims[0]);
  std::vector<Stored> stored(count);
  std::memcpy(stored.data(),
              data_.data() + e.offset + static_cast<size_t>(step) * count * sizeof(Stored),
              count * sizeof(Stored));
  out.assign(stored.begin(), stored.end());
}

Batch TimmReference::batch(int64_t step) const {
  Batch batch;
  copy_step<uint8_t>("pictures", step, batch.pictures);
  if (has("targets")) copy_step<float>("targets", step, batch.targets);
  else copy_step<int32_t>("labels", step, batch.labels);
  return batch;
}

}  // namespace voltapile::test
