#include "shard.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <nlohmann/json.hpp>

#include "voltapile/checkpoint/durable.hpp"
#include "voltapile/h5/h5.hpp"

#include "mapping.hpp"

namespace voltapile {
namespace {

struct State {
  const char* group;
  TensorView Piece::*view;
};
constexpr std::array<State, 4> kStates = {
    {{"master", &Piece::master}, {"m", &Piece::m}, {"v", &Piece::v}, {"ema", &Piece::ema}}};

std::span<const float> stored_values(const Piece& piece, const State& state, int64_t extent) {
  const TensorView& view = piece.*state.view;
  VP_CHECK(view && view.elements() == piece.end - piece.begin, "{}: {} holds {} for {}:{}",
           piece.parameter->name, state.group, view.shape.text(), piece.begin, piece.end);
  const std::span<const float> values(view.as<float>(), static_cast<size_t>(extent));
  const auto nan =
      std::find_if(values.begin(), values.end(), [](float x) { return std::isnan(x); });
  if (nan != values.end()) {
    throw Error(ExitCode::failure,
                format("{} of {} is not a number (element {} of the local tensor): training has "
                       "diverged, so this checkpoint is not written; the one before stays",
                       state.group, piece.parameter->name, piece.begin + (nan - values.begin())));
  }
  return values;
}

// The ranges of the datasets, and between them those of the rest.
std::vector<StoredRange> with_structure(std::vector<StoredRange> datasets, int64_t bytes) {
  std::sort(datasets.begin(), datasets.end(),
            [](const StoredRange& a, const StoredRange& b) { return a.begin < b.begin; });
  std::vector<StoredRange> all;
  int64_t end = 0;
  const auto close_gap = [&](int64_t next) {
    VP_CHECK(next >= end, "datasets overlap at byte {}", next);
    if (next > end) all.push_back({.dataset = {}, .begin = end, .end = next, .digest = {}});
  };
  for (StoredRange& range : datasets) {
    close_gap(range.begin);
    end = range.end;
    all.push_back(std::move(range));
  }
  close_gap(bytes);
  return all;
}

// Fills in the digests that are not known; the others must be found.
void read_back(const std::filesystem::path& path, ShardReport& report) {
  std::vector<ByteRange> places;
  for (const StoredRange& range : report.ranges) places.push_back({range.begin, range.end});
  const RangeDigests found = digest_ranges(path, places);
  for (size_t i = 0; i < report.ranges.size(); ++i) {
    StoredRange& range = report.ranges[i];
    if (!range.dataset.empty() && range.digest != found.ranges[i]) {
      throw Error(ExitCode::failure,
                  format("{}: bytes {}:{} ({}) read back otherwise than they were written; is this "
                         "disk sound, and not full?",
                         path.string(), range.begin, range.end, range.dataset));
    }
    range.digest = found.ranges[i];
  }
  report.bytes = found.whole.bytes;
  report.digest = found.whole.hex;
}

}  // namespace

ShardReport write_shard(const std::filesystem::path& folder, int rank, int64_t step,
                        const PieceOwner& owner, const std::vector<Piece>& pieces,
                        const std::function<void()>& may_go_on) {
  ShardReport report;
  report.file = format("shard_{:05d}.h5", rank);
  report.owner = owner;
  const std::filesystem::path path = folder / report.file;

  h5::File file = h5::File::create(path);
  file.set_attribute("step", step);
  file.set_attribute("rank", int64_t{rank});
  report.ema = !pieces.empty() && pieces.front().ema;
  const std::span<const State> states(kStates.data(), report.ema ? kStates.size() : 3);
  for (const State& state : states) file.create_group(state.group);
  for (const Piece& piece : pieces) {
    const auto mappings =
        map_piece(*piece.parameter, owner.tp, owner.tp_rank, piece.begin, piece.end);
    const int64_t extent = mapped_extent(mappings);
    if (extent == 0) continue;
    report.pieces.push_back({piece.parameter->name, piece.begin, piece.begin + extent});
    for (const State& state : states) {
      may_go_on();
      const auto values = stored_values(piece, state, extent);
      h5::Dataset dataset = file.open_group(state.group)
                                .create_dataset(piece.parameter->name, DType::f32, Shape{extent});
      dataset.write(values.data(), DType::f32);
      const int64_t place = dataset.place_bytes();
      report.ranges.push_back({format("/{}/{}", state.group, piece.parameter->name), place,
                               place + static_cast<int64_t>(values.size_bytes()),
                               digest_of(std::as_bytes(values))});
    }
  }
  may_go_on();
  file.close();
  may_go_on();
  report.ranges = with_structure(std::move(report.ranges),
                                 static_cast<int64_t>(std::filesystem::file_size(path)));
  read_back(path, report);
  return report;
}

std::string to_text(const ShardReport& report) {
  nlohmann::json pieces = nlohmann::json::array();
  for (const StoredPiece& p : report.pieces) pieces.push_back({p.name, p.begin, p.end});
  nlohmann::json ranges = nlohmann::json::array();
  for (const StoredRange& r : report.ranges)
    ranges.push_back({r.dataset, r.begin, r.end, r.digest});
  return nlohmann::json{{"file", report.file},
                        {"bytes", report.bytes},
                        {"digest", report.digest},
                        {"tp", report.owner.tp},
                        {"tp_rank", report.owner.tp_rank},
                        {"pieces", pieces},
                        {"ranges", ranges},
                        {"ema", report.ema}}
      .dump();
}

ShardReport shard_report(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  ShardReport report;
  report.file = json.at("file");
  report.bytes = json.at("bytes");
  report.ema = json.at("ema");
  report.digest = json.at("digest");
  report.owner = {json.at("tp"), json.at("tp_rank")};
  for (const auto& p : json.at("pieces")) report.pieces.push_back({p.at(0), p.at(1), p.at(2)});
  for (const auto& r : json.at("ranges"))
    report.ranges.push_back({r.at(0), r.at(1), r.at(2), r.at(3)});
  return report;
}

}  // namespace voltapile
