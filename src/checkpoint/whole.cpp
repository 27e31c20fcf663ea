#include "whole.hpp"

#include <algorithm>
#include <cmath>

#include "shard_faults.hpp"

namespace voltapile {

WholeTensors::WholeTensors(const std::filesystem::path& checkpoint, Digests digests)
    : index_(open_index(checkpoint)) {
  for (size_t shard = 0; shard < index_.shards.size(); ++shard) {
    const std::string fault = digests == Digests::compare
                                  ? shard_fault(checkpoint, index_, shard)
                                  : size_fault(checkpoint, index_.shards[shard]);
    if (!fault.empty()) throw Error(ExitCode::bad_data, fault + "; use another checkpoint");
  }
  remark_ = allow_open_files(index_.shards.size());
  for (const char* state : {"master", "m", "v"}) groups_.emplace(state, open_state(index_, state));
}

Shape WholeTensors::shape(const std::string& state, const std::string& name) const {
  return group(state).open_dataset(name).shape();
}

std::vector<float> WholeTensors::read(const std::string& state, const std::string& name) const {
  const h5::Dataset dataset = group(state).open_dataset(name);
  std::vector<float> values(static_cast<size_t>(dataset.shape().elements()));
  dataset.read(values.data(), DType::f32);
  if (std::any_of(values.begin(), values.end(), [](float x) { return std::isnan(x); })) {
    throw Error(ExitCode::bad_data,
                format("{}: elements are missing (a shard does not hold them){}", dataset.where(),
                       remark_));
  }
  return values;
}

}  // namespace voltapile
