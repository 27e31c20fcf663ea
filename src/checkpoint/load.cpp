#include <algorithm>
#include <cmath>
#include <optional>

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

struct CheckpointReader::Impl {
  Impl(const std::filesystem::path& checkpoint, const PieceOwner& of)
      : owner(of), index(open_index(checkpoint)) {
    for (const ShardEntry& shard : index.shards) {
      const std::string fault = size_fault(checkpoint, shard);
      if (!fault.empty()) throw Error(ExitCode::bad_data, fault + "; use another checkpoint");
    }
    remark = allow_open_files(index.shards.size());
    master.emplace(open_state(index, "master"));
    m.emplace(open_state(index, "m"));
    v.emplace(open_state(index, "v"));
    ema.emplace(open_state(index, has_averages(index) ? "ema" : "master"));
  }

  PieceOwner owner;
  Index index;
  std::string remark;
  std::optional<h5::Group> master, m, v, ema;
};

CheckpointReader::CheckpointReader(const std::filesystem::path& checkpoint, const PieceOwner& owner)
    : impl_(std::make_unique<Impl>(checkpoint, owner)) {}
CheckpointReader::~CheckpointReader() = default;

void CheckpointReader::read(const std::vector<Piece>& pieces) {
  const Impl& from = *impl_;
  for (const Piece& piece : pieces) {
    const auto mappings =
        map_piece(*piece.parameter, from.owner.tp, from.owner.tp_rank, piece.begin, piece.end);
    if (piece.master) load_tensor(*from.master, piece, mappings, piece.master, from.remark);
    if (piece.m) load_tensor(*from.m, piece, mappings, piece.m, from.remark);
    if (piece.v) load_tensor(*from.v, piece, mappings, piece.v, from.remark);
    if (piece.ema) load_tensor(*from.ema, piece, mappings, piece.ema, from.remark);
  }
}

}  // namespace voltapile
