// How other programs call the tensors of a Vision Transformer.
#pragma once
#include <string>
#include <vector>

#include "safetensors.hpp"

namespace voltapile {

enum class Naming { timm, huggingface };

struct NamesInFile {
  Naming naming = Naming::timm;
  std::string prefix;  // HuggingFace's "vit.", which a file of the bare encoder lacks
};
NamesInFile detect_names(const safetensors::Layout& layout);

// The tensors that hold a parameter of timm's name, in the order in which they follow each other
// along dim 0: three (query, key, value) for HuggingFace's qkv, else one.
std::vector<std::string> names_in_file(const NamesInFile& names, const std::string& timm_name);

// Tensors that a classifier has no use for, though files of this naming may hold them.
bool is_unused(const NamesInFile& names, const std::string& name);

}  // namespace voltapile
