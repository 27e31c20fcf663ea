#include "weight_names.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace voltapile {
namespace {

constexpr std::string_view kVit = "vit.";

struct Pair {
  std::string_view timm, huggingface;
};
// transformers, models/vit/modeling_vit.py: of the whole model ...
constexpr std::array<Pair, 6> kModel = {
    {{"cls_token", "embeddings.cls_token"},
     {"pos_embed", "embeddings.position_embeddings"},
     {"patch_embed.proj", "embeddings.patch_embeddings.projection"},
     {"norm", "layernorm"},
     {"fc_norm", "layernorm"},
     {"head", "classifier"}}};
// ... and of "encoder.layer.N.".
constexpr std::array<Pair, 5> kBlock = {{{"norm1", "layernorm_before"},
                                         {"attn.proj", "attention.output.dense"},
                                         {"norm2", "layernorm_after"},
                                         {"mlp.fc1", "intermediate.dense"},
                                         {"mlp.fc2", "output.dense"}}};

template <size_t n>
std::string look_up(const std::array<Pair, n>& pairs, std::string_view timm) {
  const auto pair =
      std::find_if(pairs.begin(), pairs.end(), [&](const Pair& p) { return p.timm == timm; });
  // What HuggingFace's ViT does not have keeps timm's name, and is then missing under it.
  return std::string(pair == pairs.end() ? timm : pair->huggingface);
}

// "blocks.3.attn.qkv.weight" as "blocks.3.", "attn.qkv", ".weight".
struct Parts {
  std::string block, module, kind;
};
Parts take_apart(const std::string& name) {
  Parts parts{"", name, ""};
  for (const char* kind : {".weight", ".bias"}) {
    if (!parts.module.ends_with(kind)) continue;
    parts.kind = kind;
    parts.module.resize(parts.module.size() - parts.kind.size());
  }
  constexpr std::string_view kBlocks = "blocks.";
  if (parts.module.starts_with(kBlocks)) {
    const size_t end = parts.module.find('.', kBlocks.size()) + 1;
    parts.block = parts.module.substr(0, end);
    parts.module = parts.module.substr(end);
  }
  return parts;
}

}  // namespace

NamesInFile detect_names(const safetensors::Layout& layout) {
  for (const safetensors::Tensor& tensor : layout.tensors) {
    if (!tensor.name.ends_with("embeddings.patch_embeddings.projection.weight")) continue;
    return {Naming::huggingface, tensor.name.starts_with(kVit) ? std::string(kVit) : ""};
  }
  return {};
}

std::vector<std::string> names_in_file(const NamesInFile& names, const std::string& timm_name) {
  if (names.naming == Naming::timm) return {timm_name};
  const Parts parts = take_apart(timm_name);
  if (parts.block.empty()) {
    const std::string module = look_up(kModel, parts.module);
    // The classifier is not part of the encoder.
    return {(parts.module == "head" ? "" : names.prefix) + module + parts.kind};
  }
  const std::string layer =
      names.prefix + "encoder.layer." + parts.block.substr(parts.block.find('.') + 1);
  if (parts.module != "attn.qkv") return {layer + look_up(kBlock, parts.module) + parts.kind};
  std::vector<std::string> three;
  for (const char* part : {"query", "key", "value"})
    three.push_back(layer + "attention.attention." + part + parts.kind);
  return three;
}

bool is_unused(const NamesInFile& names, const std::string& name) {
  return names.naming == Naming::huggingface && name.starts_with(names.prefix + "pooler.dense.");
}

}  // namespace voltapile
