// The whole tensors of a checkpoint, whatever mesh wrote it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "index.hpp"

namespace voltapile {

class WholeTensors {
 public:
  // Error(bad_data) when the index is damaged or a shard's bytes are not those
  // that were saved: all of them are read.
  explicit WholeTensors(const std::filesystem::path& checkpoint);

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

}  // namespace voltapile
