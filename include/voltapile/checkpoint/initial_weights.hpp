// The weights that a new run begins with, out of a file of weights or another run's checkpoint.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "voltapile/architecture/architecture.hpp"

namespace voltapile {

// Whether a checkpoint's digests are compared by whoever opens it, or have been, by find_damage().
enum class Digests { compare, compared };

class InitialWeights {
 public:
  // `from`: a safetensors file with timm's or HuggingFace's ViT names, a step folder, or a run
  // folder, which stands for its latest. What may differ from the architecture, and what becomes of
  // it, says import_weights(). Error(bad_data) lists every tensor that is missing, superfluous, or
  // of a wrong type or shape, one a line; `deck` names the model in it. `architecture` must outlive
  // this. Reads no values yet, except to compare digests.
  InitialWeights(const std::filesystem::path& from, const Architecture& architecture, uint64_t seed,
                 const std::string& deck, Digests digests);
  ~InitialWeights();
  InitialWeights(const InitialWeights&) = delete;
  InitialWeights& operator=(const InitialWeights&) = delete;

  const std::vector<std::string>& notes() const;  // what is not taken over one to one
  // A parameter of the architecture, as the whole tensor.
  std::vector<float> read(const Parameter& parameter);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace voltapile
