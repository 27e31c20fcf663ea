#include <algorithm>
#include <cmath>

#include "voltapile/checkpoint/checkpoint.hpp"

#include "index.hpp"
#include "mapping.hpp"

namespace voltapile {
namespace {

void load_tensor(const h5::Group& group, const Piece& piece, const std::vector<Mapping>& mappings,
                 const TensorView& view, const std::string& remark) {
  const auto code = ExitCode::bad_data;
  const std::string& name = piece.parameter->name;
  VP_CHECK(view.elements() == piece.end - piece.begin, "{}: {} for {}:{}", name, view.shape.text(),
           piece.begin, piece.end);
  if (!group.exists(name)) {
    throw Error(code,
                format("{}: it holds no tensor {}; was this model saved?", group.where(), name));
  }
  const h5::Dataset dataset = group.open_dataset(name);
  if (dataset.shape() != piece.parameter->shape) {
    throw Error(code,
                format("{}: shape {} there, {} in the model that is being loaded", dataset.where(),
                       dataset.shape().text(), piece.parameter->shape.text()));
  }
  float* values = view.as<float>();
  const int64_t extent = mapped_extent(mappings);
  for (const Mapping& mapping : mappings) {
    dataset.read_box(mapping.whole, values + mapping.offset, DType::f32);
  }
  if (std::any_of(values, values + extent, [](float x) { return std::isnan(x); })) {
    throw Error(code, format("{}: elements are missing (a shard does not hold them){}",
                             dataset.where(), remark));
  }
  std::fill(values + extent, values + view.elements(), 0.0f);
}

}  // namespace

RunState read_run_state(const std::filesystem::path& checkpoint) {
  return open_index(checkpoint).state;
}

void load_checkpoint(const std::filesystem::path& checkpoint, const PieceOwner& owner,
                     const std::vector<Piece>& pieces) {
  const Index index = open_index(checkpoint);
  for (const ShardEntry& shard : index.shards) {
    const std::string fault = size_fault(checkpoint, shard);
    if (!fault.empty()) throw Error(ExitCode::bad_data, fault + "; use another checkpoint");
  }
  const std::string remark = allow_open_files(index.shards.size());
  const h5::Group master = open_state(index, "master");
  const h5::Group m = open_state(index, "m");
  const h5::Group v = open_state(index, "v");
  const h5::Group ema = open_state(index, has_averages(index) ? "ema" : "master");
  for (const Piece& piece : pieces) {
    const auto mappings =
        map_piece(*piece.parameter, owner.tp, owner.tp_rank, piece.begin, piece.end);
    if (piece.master) load_tensor(master, piece, mappings, piece.master, remark);
    if (piece.m) load_tensor(m, piece, mappings, piece.m, remark);
    if (piece.v) load_tensor(v, piece, mappings, piece.v, remark);
    if (piece.ema) load_tensor(ema, piece, mappings, piece.ema, remark);
  }
}

}  // namespace voltapile
