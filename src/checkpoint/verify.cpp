#include <algorithm>
#include <cmath>

#include "voltapile/checkpoint/checkpoint.hpp"

#include "index.hpp"
#include "shard_faults.hpp"

namespace voltapile {
namespace {

// Reads a whole tensor in slabs of its first dim; true when it holds NaN.
bool has_gaps(const h5::Dataset& tensor, std::vector<float>& slab) {
  const Shape shape = tensor.shape();
  if (shape.elements() == 0) return false;
  const int64_t inner = shape.elements() / shape[0];
  constexpr int64_t kSlab = int64_t{16} << 20;
  const int64_t rows = std::clamp<int64_t>(kSlab / inner, 1, shape[0]);
  slab.resize(static_cast<size_t>(rows * inner));
  for (int64_t row = 0; row < shape[0]; row += rows) {
    h5::Box box{Shape{}, shape};
    for (int dim = 0; dim < shape.dims(); ++dim) box.start.append(0);
    box.start.set(0, row);
    box.count.set(0, std::min(rows, shape[0] - row));
    tensor.read_box(box, slab.data(), DType::f32);
    const auto end = slab.begin() + box.count.elements();
    if (std::any_of(slab.begin(), end, [](float x) { return std::isnan(x); })) return true;
  }
  return false;
}

void verify_shards(const std::filesystem::path& checkpoint, const Index& index,
                   Verification& found) {
  for (size_t i = 0; i < index.shards.size(); ++i) {
    ++found.shards;
    const std::string fault = shard_fault(checkpoint, index, i);
    if (fault.empty()) found.bytes += index.shards[i].bytes;
    else found.faults.push_back(fault);
  }
}

void verify_tensors(const Index& index, Verification& found) {
  const std::string remark = allow_open_files(index.shards.size());
  std::vector<float> slab;
  std::vector<std::string> tensors;
  std::vector<std::string> states = {"master", "m", "v"};
  if (has_averages(index)) states.emplace_back("ema");
  for (const std::string& state : states) {
    try {
      const h5::Group group = open_state(index, state);
      const std::vector<std::string> names = group.names();
      if (tensors.empty()) tensors = names;
      if (names != tensors || names.empty()) {
        found.faults.push_back(format("{}: other tensors than the model has", group.where()));
      }
      for (const std::string& name : names) {
        const h5::Dataset tensor = group.open_dataset(name);
        if (has_gaps(tensor, slab)) {
          found.faults.push_back(
              format("{}: elements are missing or not numbers{}", tensor.where(), remark));
        }
      }
    } catch (const Error& error) { found.faults.emplace_back(error.what()); }
  }
  found.tensors = static_cast<int64_t>(tensors.size());
}

}  // namespace

Verification verify_checkpoint(const std::filesystem::path& checkpoint, Depth depth) {
  Verification found;
  try {
    const Index index = open_index(checkpoint);
    found.bytes = static_cast<int64_t>(std::filesystem::file_size(index.path));
    verify_shards(checkpoint, index, found);
    // Of a damaged shard everything is said; its tensors would only say it again.
    if (found.faults.empty()) verify_tensors(index, found);
    for (size_t i = 0; depth == Depth::datasets && found.faults.empty() && i < index.shards.size();
         ++i)
      found.faults = dataset_faults(checkpoint, index, i, found.datasets);
  } catch (const std::exception& error) { found.faults.emplace_back(error.what()); }
  return found;
}

}  // namespace voltapile
