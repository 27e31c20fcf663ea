// The whole tensors of a checkpoint, whatever mesh wrote it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "voltapile/checkpoint/initial_weights.hpp"

#include "index.hpp"
#include "safetensors.hpp"

namespace voltapile {

class WholeTensors {
 public:
  // Error(bad_data) when the index is damaged or a shard's bytes are not those
  // that were saved: with Digests::compare all of them are read, else their number counts.
  explicit WholeTensors(const std::filesystem::path& checkpoint,
                        Digests digests = Digests::compare);

  const RunState& state() const { return index_.state; }
  // `state` is "master", "m" or "v".
  std::vector<std::string> names(const std::string& state) const { return group(state).names(); }
  Shape shape(const std::string& state, const std::string& name) const;
  // All elements; Error(bad_data) when some are missing.
  std::vector<float> read(const std::string& state, const std::string& name) const;

 private:
  const h5::Group& group(const std::string& state) const { return groups_.at(state); }

  Index index_;
  std::map<std::string, h5::Group> groups_;
  std::string remark_;  // for a message about missing elements
};

// How a safetensors file of the master weights is laid out; an export's metadata.
safetensors::Layout safetensors_layout(const WholeTensors& tensors,
                                       const std::filesystem::path& checkpoint, DType type);

}  // namespace voltapile
