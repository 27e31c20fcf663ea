// Weights of other programs become a checkpoint; what does not fit is named; checkpoints compared.
#include "voltapile/checkpoint/interchange.hpp"

#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "voltapile/architecture/architecture.hpp"
#include "voltapile/model/chunk_model.hpp"

#include "../../support/sample_deck.hpp"
#include "resample.hpp"
#include "safetensors.hpp"
#include "sample.hpp"
#include "weight_names.hpp"
#include "whole.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;
using Values = std::map<std::string, std::vector<float>>;

struct Stored {
  Shape shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Stored>;

Deck small_deck(Pool pool) {
  Deck deck = test::sample_deck();
  deck.model.depth = 2;
  deck.precision.loss_scale = 1;  // as parsing resolves it
  deck.model.pool = pool;
  return deck;
}

// A file's tensors for a deck: under timm's names, each element another value.
Tensors tensors_for(const Deck& deck) {
  Tensors tensors;
  float value = 0;
  for (const Layer& layer : make_architecture(deck).layers)
    for (const Parameter& p : layer.parameters) {
      Stored stored{p.shape, std::vector<float>(static_cast<size_t>(p.shape.elements()))};
      for (float& x : stored.values) x = value += 0.25f;
      tensors[p.name] = std::move(stored);
    }
  return tensors;
}

void write_file(const fs::path& path, const Tensors& tensors,
                const std::map<std::string, std::string>& metadata = {}) {
  safetensors::Layout layout{.metadata = metadata};
  std::string data;
  for (const auto& [name, stored] : tensors) {
    const auto begin = static_cast<int64_t>(data.size());
    data.append(reinterpret_cast<const char*>(stored.values.data()),
                stored.values.size() * sizeof(float));
    layout.tensors.push_back({name, "F32", stored.shape, begin, static_cast<int64_t>(data.size())});
  }
  std::ofstream(path, std::ios::binary) << safetensors::header_bytes(layout) << data;
}

class Interchange : public testing::Test {
 protected:
  fs::path file() const { return folder_.path() / "a.safetensors"; }
  Imported import(const Deck& deck, const std::string& name = "run") {
    return import_weights(file(), deck, [&] { return folder_.path() / name; });
  }
  std::string refusal(const Deck& deck) {
    try {
      import(deck);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_FALSE(fs::exists(folder_.path() / "run"));
      return error.what();
    }
    return "accepted";
  }
  const fs::path& path() const { return folder_.path(); }

 private:
  sample::Folder folder_;
};

Values weights_of(const fs::path& checkpoint) {
  const WholeTensors tensors(checkpoint);
  Values values;
  for (const std::string& name : tensors.names("master"))
    values[name] = tensors.read("master", name);
  return values;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(Interchange, WeightsOfTimmsNamesComeBackBitForBit) {
  for (const Pool pool : {Pool::token, Pool::mean}) {
    const Deck deck = small_deck(pool);
    const Tensors tensors = tensors_for(deck);
    write_file(file(), tensors);
    const Imported imported = import(deck, pool == Pool::token ? "token" : "mean");
    EXPECT_EQ(imported.notes, std::vector<std::string>{});
    for (const auto& [name, values] : weights_of(imported.checkpoint))
      EXPECT_EQ(values, tensors.at(name).values) << name;
    EXPECT_EQ(verify_checkpoint(imported.checkpoint).faults, std::vector<std::string>{});
    const WholeTensors stored(imported.checkpoint);
    for (const char* state : {"m", "v"})
      for (const std::string& name : stored.names(state))
        for (const float x : stored.read(state, name)) ASSERT_EQ(x, 0) << state << name;
    EXPECT_EQ(stored.state().step, 0);
    EXPECT_EQ(stored.state().seed, deck.run.seed);
    EXPECT_EQ(stored.state().loss_scale, 1);
    export_weights(imported.checkpoint, path() / "b.safetensors", DType::f32);
    safetensors::Reader reader(path() / "b.safetensors");
    EXPECT_EQ(reader.layout().tensors.size(), tensors.size());
    for (const safetensors::Tensor& tensor : reader.layout().tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
      reader.read(tensor, values.data());
      EXPECT_EQ(tensor.shape, tensors.at(tensor.name).shape);
      EXPECT_EQ(values, tensors.at(tensor.name).values) << tensor.name;
    }
  }
}

TEST_F(Interchange, HuggingFacesQueryKeyAndValueFollowEachOther) {
  const std::string attention = "vit.encoder.layer.11.attention.attention.";
  EXPECT_EQ(names_in_file({Naming::huggingface, "vit."}, "blocks.11.attn.qkv.bias"),
            (std::vector<std::string>{attention + "query.bias", attention + "key.bias",
                                      attention + "value.bias"}));
}

TEST_F(Interchange, HuggingFacesNamesAreTheSameWeights) {
  const Deck deck = small_deck(Pool::token);
  const Tensors timm = tensors_for(deck);
  for (const std::string& prefix : {std::string("vit."), std::string()}) {
    Tensors tensors;
    for (const auto& [name, stored] : timm) {
      const auto names = names_in_file({Naming::huggingface, prefix}, name);
      const size_t each = stored.values.size() / names.size();
      for (size_t i = 0; i < names.size(); ++i) {
        Shape shape = stored.shape;
        shape.set(0, shape[0] / static_cast<int64_t>(names.size()));
        const auto begin = stored.values.begin() + static_cast<long>(i * each);
        tensors[names[i]] = {shape, {begin, begin + static_cast<long>(each)}};
      }
    }
    for (const char* name :
         {"encoder.layer.1.attention.attention.query.bias",
          "encoder.layer.0.attention.output.dense.weight", "encoder.layer.0.layernorm_after.weight",
          "encoder.layer.1.intermediate.dense.weight", "encoder.layer.1.output.dense.bias",
          "embeddings.cls_token", "embeddings.position_embeddings",
          "embeddings.patch_embeddings.projection.weight", "layernorm.bias"})
      EXPECT_TRUE(tensors.contains(prefix + name)) << name;
    EXPECT_TRUE(tensors.contains("classifier.weight"));
    tensors[prefix + "pooler.dense.bias"] = {{1}, {0}};
    write_file(file(), tensors);
    const Imported imported = import(deck, "run" + prefix);
    EXPECT_EQ(imported.notes, std::vector<std::string>{prefix + "pooler.dense.bias: left out"});
    for (const auto& [name, values] : weights_of(imported.checkpoint))
      EXPECT_EQ(values, timm.at(name).values) << name;
  }
}

TEST_F(Interchange, OtherClassesGetANewRunsHead) {
  Deck deck = small_deck(Pool::token);
  Tensors tensors = tensors_for(deck);
  write_file(file(), tensors);
  deck.model.classes = 7;
  const auto expect_new_head = [&](const Imported& imported, const std::string& why) {
    ASSERT_EQ(imported.notes.size(), 1u);
    EXPECT_EQ(imported.notes.front(), "head: new, for 7 classes: " + why);
    const Architecture architecture = make_architecture(deck);
    for (const Parameter& p : architecture.layers.back().parameters) {
      std::vector<float> want(static_cast<size_t>(p.shape.elements()));
      initial_values(architecture, p, deck.run.seed, 1, 0, 0, {want.data(), DType::f32, p.shape});
      if (!p.name.starts_with("head.")) want = tensors.at(p.name).values;
      EXPECT_EQ(weights_of(imported.checkpoint).at(p.name), want) << p.name;
    }
  };
  expect_new_head(import(deck, "other"), "10 in the file");
  tensors.erase("head.weight");
  tensors.erase("head.bias");
  write_file(file(), tensors);
  expect_new_head(import(deck, "none"), "the file has none");
}

TEST_F(Interchange, PositionsAreResizedAndTheClassTokensRowStays) {
  Deck deck = small_deck(Pool::token);
  Tensors tensors = tensors_for(deck);
  write_file(file(), tensors);
  const auto& before = tensors.at("pos_embed").values;
  deck.model.image = {24, 8};  // 6 x 2 from 4 x 4
  const Imported imported = import(deck);
  EXPECT_TRUE(has(imported.notes.at(0), "from 4 x 4 to 6 x 2"));
  const auto after = weights_of(imported.checkpoint).at("pos_embed");
  const auto dim = static_cast<long>(deck.model.dim);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + dim, after.begin()));
  const auto want = resample(before.data() + dim, {4, 4}, {6, 2}, dim);
  EXPECT_TRUE(std::equal(want.begin(), want.end(), after.begin() + dim, after.end()));
}

TEST_F(Interchange, WhatTheFileDoesNotAddToTheClassTokenIsZero) {
  const Deck deck = small_deck(Pool::token);
  Tensors tensors = tensors_for(deck);
  auto& table = tensors.at("pos_embed");  // timm's no_embed_class
  table.shape.set(1, 16);
  table.values.resize(16 * 32);
  write_file(file(), tensors);
  std::vector<float> want(32, 0.0f);
  want.insert(want.end(), table.values.begin(), table.values.end());
  EXPECT_EQ(weights_of(import(deck).checkpoint).at("pos_embed"), want);
}

TEST_F(Interchange, AFixedTableNeedNotBeInTheFile) {
  Deck deck = small_deck(Pool::mean);
  Tensors tensors = tensors_for(deck);
  tensors.erase("pos_embed");
  write_file(file(), tensors);
  EXPECT_TRUE(has(refusal(deck), "pos_embed: missing"));
  deck.model.position = Position::sine2d;
  const auto table = weights_of(import(deck).checkpoint).at("pos_embed");
  EXPECT_EQ(table[0], 0.0f);             // sin(0)
  EXPECT_EQ(table[8], 1.0f);             // cos(0)
  EXPECT_EQ(table[32], std::sin(1.0f));  // the second patch of the first row
}

TEST_F(Interchange, AWeightBeyondF16IsRefusedAndLeavesNoFile) {
  const Deck deck = small_deck(Pool::mean);
  Tensors tensors = tensors_for(deck);
  float& weight = tensors.at("head.bias").values[3];
  const fs::path out = path() / "b.safetensors";
  weight = -65519;  // rounds to -65504
  write_file(file(), tensors);
  EXPECT_NO_THROW(export_weights(import(deck, "a").checkpoint, out, DType::f16));
  fs::remove(out);
  weight = -65520;
  write_file(file(), tensors);
  const fs::path checkpoint = import(deck, "b").checkpoint;
  try {
    export_weights(checkpoint, out, DType::f16);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_TRUE(has(error.what(), "head.bias"));
  }
  EXPECT_FALSE(fs::exists(out));
  EXPECT_FALSE(fs::exists(path() / "b.safetensors.partial"));
  EXPECT_NO_THROW(export_weights(checkpoint, out, DType::bf16));
}

TEST_F(Interchange, TheGridOfAnExportIsNotGuessed) {
  Deck deck = small_deck(Pool::mean);
  deck.model.image = {8, 32};  // 2 x 8: as many as 4 x 4
  write_file(file(), tensors_for(deck), {{"grid", "2x8"}});
  EXPECT_EQ(import(deck, "same").notes, std::vector<std::string>{});
  deck.model.image = {16, 16};
  EXPECT_TRUE(has(import(deck, "other").notes.at(0), "from 2 x 8 to 4 x 4"));
  for (const char* nonsense : {"0x0", "x", "-2x-8", "99999999999x99999999999", "3x3", "2x8x"}) {
    write_file(file(), tensors_for(deck), {{"grid", nonsense}});
    EXPECT_EQ(import(deck, nonsense).notes, std::vector<std::string>{}) << nonsense;
  }
}

TEST_F(Interchange, MeanPoolingTakesTheEncoderOfAClassTokenModel) {
  const Tensors tensors = tensors_for(small_deck(Pool::token));
  write_file(file(), tensors);
  const Imported imported = import(small_deck(Pool::mean));
  ASSERT_EQ(imported.notes.size(), 2u);
  const Values weights = weights_of(imported.checkpoint);
  EXPECT_FALSE(weights.contains("cls_token"));
  EXPECT_EQ(weights.at("fc_norm.weight"), tensors.at("norm.weight").values);
  const auto& table = tensors.at("pos_embed").values;
  EXPECT_EQ(weights.at("pos_embed"), std::vector<float>(table.begin() + 32, table.end()));
}

TEST_F(Interchange, EveryTensorThatDoesNotFitIsOneLine) {
  const Deck deck = small_deck(Pool::token);
  Tensors tensors = tensors_for(deck);
  tensors.erase("blocks.0.attn.qkv.weight");
  tensors.erase("head.bias");
  tensors["blocks.1.norm1.bias"] = {{31}, std::vector<float>(31)};
  tensors["pos_embed"] = {{1, 19, 32}, std::vector<float>(19 * 32)};
  tensors["blocks.2.norm1.bias"] = {{1}, {0}};
  tensors["odd\nname"] = {{1}, {0}};
  write_file(file(), tensors, {{"voltapile", "0"}, {"heads", "8"}});
  const std::string message = refusal(deck);
  for (const char* line :
       {"\n  blocks.0.attn.qkv.weight: missing", "\n  head.bias: missing",
        "\n  blocks.1.norm1.bias: (31) there, (32) here", "\n  blocks.2.norm1.bias: superfluous",
        "\n  \"odd\\nname\": superfluous", "\n  model.heads: 8 there, 4 here",
        "\n  pos_embed: 19 positions are neither this model's 17 nor a square grid"})
    EXPECT_TRUE(has(message, line)) << line << "\n" << message;
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 7) << message;
}

TEST_F(Interchange, ComparisonFindsWhatDiffersWhateverTheMesh) {
  sample::save(path() / "a", {1, 1, 1}, 5, 1);
  sample::save(path() / "b", {2, 1, 2}, 5, 1);
  sample::save(path() / "c", {1, 2, 1}, 6, 1);
  const fs::path a = path() / "a/step_00000005", b = path() / "b/step_00000005",
                 c = path() / "c/step_00000006";
  const CheckpointDifference same = compare_checkpoints(a, b, Compared::weights_and_moments);
  EXPECT_TRUE(same.equal()) << describe(same);
  EXPECT_EQ(same.tensors, 36);
  const CheckpointDifference other = compare_checkpoints(a, c, Compared::weights);
  EXPECT_EQ(other.values.size(), 12u);
  const auto model = sample::model();
  for (const TensorDifference& one : other.values) {
    const auto p = std::find_if(model.begin(), model.end(),
                                [&](const Parameter& x) { return x.name == one.name; });
    double largest = 0, magnitude = 0;
    for (int64_t i = 0; i < p->shape.elements(); ++i) {
      const double x = sample::value(*p, 0, 5, i), y = sample::value(*p, 0, 6, i);
      largest = std::max(largest, std::fabs(x - y));
      magnitude = std::max({magnitude, x, y});
    }
    EXPECT_EQ(one.largest, largest) << one.name;
    EXPECT_EQ(one.relative, largest / magnitude) << one.name;
  }
  write_file(file(), tensors_for(small_deck(Pool::mean)));
  const CheckpointDifference apart =
      compare_checkpoints(a, import(small_deck(Pool::mean)).checkpoint, Compared::weights);
  EXPECT_FALSE(apart.equal());
  EXPECT_NE(std::find(apart.others.begin(), apart.others.end(), "cls_token: only in A"),
            apart.others.end());
  EXPECT_NE(std::find(apart.others.begin(), apart.others.end(), "fc_norm.bias: only in B"),
            apart.others.end());
  EXPECT_NE(std::find(apart.others.begin(), apart.others.end(),
                      "pos_embed: (1, 17, 24) in A, (1, 16, 32) in B"),
            apart.others.end());
}

}  // namespace
}  // namespace voltapile
