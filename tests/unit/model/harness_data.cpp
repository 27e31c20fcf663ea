// What the model's tests feed in and read out: weights, batches, values of any type.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "voltapile/base/philox.hpp"

#include "harness.hpp"

namespace voltapile::test {

Deck small_deck() {
  Deck deck;
  deck.model.image = {8, 8};
  deck.model.patch = {4, 4};
  deck.model.channels = 3;
  deck.model.dim = 8;
  deck.model.depth = 2;
  deck.model.heads = 2;
  deck.model.mlp = 12;
  deck.model.classes = 5;
  deck.model.pool = Pool::mean;
  deck.model.position = Position::learned;
  deck.model.qkv_bias = true;
  deck.model.initial_std = 0.02;
  return deck;
}

Values random_weights(const Architecture& a, uint64_t seed) {
  Values values;
  for (const Layer& layer : a.layers) {
    for (const Parameter& p : layer.parameters) {
      std::vector<double>& v = values[p.name];
      for (int64_t i = 0; i < p.shape.elements(); ++i) {
        const double noise = truncated_normal(seed, p.id, static_cast<uint64_t>(i));
        // Exact in single precision, so that every working type of 32 bits starts the same.
        v.push_back(static_cast<float>(p.initial == Initial::ones ? 1 + 0.2 * noise : 0.3 * noise));
      }
    }
  }
  return values;
}

Batch random_batch(const Architecture& a, int64_t samples, uint64_t seed) {
  Batch batch;
  const int64_t pixels = samples * a.model.channels * a.model.image[0] * a.model.image[1];
  const auto draw = [&](uint32_t item, int64_t i) {
    return random_words(seed, Purpose::synthetic, item, static_cast<uint64_t>(i))[0];
  };
  for (int64_t i = 0; i < pixels; ++i) batch.pictures.push_back(static_cast<uint8_t>(draw(0, i)));
  for (int64_t i = 0; i < samples; ++i)
    batch.labels.push_back(
        static_cast<int32_t>(draw(1, i) % static_cast<uint32_t>(a.model.classes)));
  return batch;
}

Batch soft_batch(const Architecture& a, int64_t samples, uint64_t seed) {
  Batch batch = random_batch(a, samples, seed);
  batch.labels.clear();
  // In 64ths, so that they sum to one exactly: each draw gives a class one more.
  constexpr int kDraws = 64;
  batch.targets.assign(static_cast<size_t>(samples * a.model.classes), 0.0F);
  for (int64_t s = 0; s < samples; ++s) {
    for (int64_t draw = 0; draw < kDraws; ++draw) {
      const auto index = static_cast<uint64_t>(s * kDraws + draw);
      const auto k = static_cast<int64_t>(random_words(seed, Purpose::synthetic, 2, index)[0] %
                                          static_cast<uint32_t>(a.model.classes));
      batch.targets[static_cast<size_t>(s * a.model.classes + k)] += 1.0F / kDraws;
    }
  }
  return batch;
}

namespace {
template <class T>
void write_as(const TensorView& view, const std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i)
    view.as<T>()[i] = static_cast<T>(static_cast<float>(values[i]));
}
template <class T>
std::vector<double> read_as(const TensorView& view) {
  std::vector<double> values;
  for (int64_t i = 0; i < view.elements(); ++i)
    values.push_back(static_cast<double>(static_cast<float>(view.as<T>()[i])));
  return values;
}
}  // namespace

void write_values(const TensorView& view, const std::vector<double>& values) {
  VP_CHECK(static_cast<size_t>(view.elements()) == values.size(), "{} values for {}", values.size(),
           view.shape.text());
  switch (view.dtype) {
    case DType::f64: std::copy(values.begin(), values.end(), view.as<double>()); break;
    case DType::f32: write_as<float>(view, values); break;
    case DType::f16: write_as<Half>(view, values); break;
    case DType::bf16: write_as<BFloat16>(view, values); break;
    default: VP_CHECK(false, "values of type {}", name_of(view.dtype));
  }
}

std::vector<double> read_values(const TensorView& view) {
  switch (view.dtype) {
    case DType::f64: return {view.as<double>(), view.as<double>() + view.elements()};
    case DType::f32: return read_as<float>(view);
    case DType::f16: return read_as<Half>(view);
    case DType::bf16: return read_as<BFloat16>(view);
    default: VP_CHECK(false, "values of type {}", name_of(view.dtype));
  }
  return {};
}

}  // namespace voltapile::test
