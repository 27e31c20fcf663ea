#include "shard.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <nlohmann/json.hpp>

#include "voltapile/checkpoint/durable.hpp"
#include "voltapile/h5/h5.hpp"

#include "mapping.hpp"
#include "shard_file.hpp"
#include "task_queue.hpp"

namespace voltapile {
namespace {

struct State {
  const char* group;
  TensorView Piece::*view;
};
constexpr std::array<State, 4> kStates = {
    {{"master", &Piece::master}, {"m", &Piece::m}, {"v", &Piece::v}, {"ema", &Piece::ema}}};

// A dataset that is laid out and waits for its values.
struct Place {
  StateSource::Tensor tensor;
  const char* group;
  int64_t at = 0;
  int64_t elements = 0;  // trailing padding of the piece left out

  std::string dataset(const std::vector<Piece>& pieces) const {
    return format("/{}/{}", group, pieces[tensor.piece].parameter->name);
  }
};

// In the order of the file.
std::vector<Place> lay_out(const std::filesystem::path& path, int rank, int64_t step,
                           std::span<const State> states, const std::vector<Piece>& pieces,
                           ShardReport& report) {
  h5::File file = h5::File::create(path, {ShardFile::kLong, ShardFile::kPage});
  file.set_attribute("step", step);
  file.set_attribute("rank", int64_t{rank});
  for (const State& state : states) file.create_group(state.group);
  std::vector<Place> places;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const int64_t extent = mapped_extent(
        map_piece(*piece.parameter, report.owner.tp, report.owner.tp_rank, piece.begin, piece.end));
    if (extent == 0) continue;
    report.pieces.push_back({piece.parameter->name, piece.begin, piece.begin + extent});
    for (const State& state : states) {
      const h5::Dataset dataset =
          file.open_group(state.group)
              .create_dataset(piece.parameter->name, DType::f32, Shape{extent});
      places.push_back({{i, state.view}, state.group, dataset.place_bytes(), extent});
    }
  }
  file.close_unsynced();
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.at < b.at; });
  return places;
}

// Writes a file from its first byte to its last. Its bytes are looked at and digested beside that,
// one slab behind.
class Filler {
 public:
  Filler(const std::filesystem::path& path, const std::vector<Piece>& pieces, StateSource& source,
         const std::function<void()>& may_go_on, ShardReport& report)
      : file_(path), pieces_(pieces), source_(source), may_go_on_(may_go_on), report_(report) {}

  void fill(const std::vector<Place>& places) {
    for (const Place& place : places) {
      structure(place.at);
      values(place);
    }
    structure(file_.bytes());
    digests_.wait(newest_);
    may_go_on_();
    file_.close();
    report_.bytes = file_.bytes();
    report_.digest = whole_.hex();
    report_.refusal = file_.refusal();
  }

 private:
  // What HDF5 has written up to `end`.
  void structure(int64_t end) {
    VP_CHECK(end >= at_, "datasets overlap at byte {}", end);
    if (at_ == end) return;
    std::vector<std::byte> bytes(static_cast<size_t>(end - at_));
    file_.read(at_, bytes);
    newest_ = digests_.add([this, begin = at_, bytes = std::move(bytes)] {
      add(bytes);
      close_range({}, begin, begin + static_cast<int64_t>(bytes.size()));
    });
    at_ = end;
  }

  void values(const Place& place) {
    const Piece& piece = pieces_[place.tensor.piece];
    const int64_t begin = at_, size = piece.end - piece.begin;
    for (int64_t done = 0; done < size;) {
      may_go_on_();
      const std::span<const float> taken = source_.take();
      const auto count = static_cast<int64_t>(taken.size());
      VP_CHECK(0 < count && count <= size - done, "{}: {} values are given for {}",
               place.dataset(pieces_), count, size - done);
      const std::span<const float> kept =
          taken.first(static_cast<size_t>(std::clamp<int64_t>(place.elements - done, 0, count)));
      // The slab before this one goes when the next is taken.
      digests_.wait(newest_);
      newest_ = digests_.add([this, place, first = piece.begin + done, kept] {
        refuse_nan(place, first, kept);
        add(std::as_bytes(kept));
      });
      file_.write(at_, std::as_bytes(kept));
      at_ += static_cast<int64_t>(kept.size_bytes());
      done += count;
    }
    newest_ = digests_.add(
        [this, place, begin, end = at_] { close_range(place.dataset(pieces_), begin, end); });
  }

  void refuse_nan(const Place& place, int64_t first, std::span<const float> values) const {
    int found = 0;  // without a way out, the loop is one of whole vectors
    for (float x : values) found |= std::isnan(x) ? 1 : 0;
    if (found == 0) return;
    const auto nan =
        std::find_if(values.begin(), values.end(), [](float x) { return std::isnan(x); });
    throw Error(ExitCode::failure,
                format("{} of {} is not a number (element {} of the local tensor): training has "
                       "diverged, so this checkpoint is not written; the one before stays",
                       place.group, pieces_[place.tensor.piece].parameter->name,
                       first + (nan - values.begin())));
  }

  void add(std::span<const std::byte> bytes) {
    whole_.add(bytes);
    part_.add(bytes);
  }
  void close_range(std::string dataset, int64_t begin, int64_t end) {
    report_.ranges.push_back({std::move(dataset), begin, end, part_.hex()});
    part_.reset();
  }

  ShardFile file_;
  const std::vector<Piece>& pieces_;
  StateSource& source_;
  const std::function<void()>& may_go_on_;
  ShardReport& report_;
  int64_t at_ = 0;
  RunningDigest whole_, part_;  // the queue's, as the report's ranges are
  int64_t newest_ = 0;
  TaskQueue digests_;
};

}  // namespace

std::span<const float> ViewSource::take() {
  const Tensor& tensor = left_[next_];
  const Piece& piece = pieces_[tensor.piece];
  const TensorView& view = piece.*tensor.part;
  const int64_t size = piece.end - piece.begin;
  VP_CHECK(view && view.elements() == size, "{}: {} for {}:{}", piece.parameter->name,
           view.shape.text(), piece.begin, piece.end);
  const int64_t count = std::min<int64_t>(size - taken_, ShardFile::kBlock / sizeof(float));
  const std::span<const float> values(view.as<float>() + taken_, static_cast<size_t>(count));
  taken_ += count;
  if (taken_ == size) {
    ++next_;
    taken_ = 0;
  }
  return values;
}

ShardReport write_shard(const std::filesystem::path& folder, int rank, int64_t step,
                        const PieceOwner& owner, const std::vector<Piece>& pieces,
                        StateSource& source, const std::function<void()>& may_go_on) {
  ShardReport report;
  report.file = format("shard_{:05d}.h5", rank);
  report.owner = owner;
  report.ema = source.averaged();
  const std::filesystem::path path = folder / report.file;
  may_go_on();
  const std::span<const State> states(kStates.data(), report.ema ? kStates.size() : 3);
  const std::vector<Place> places = lay_out(path, rank, step, states, pieces, report);
  std::vector<StateSource::Tensor> order;
  for (const Place& place : places) order.push_back(place.tensor);
  source.begin(order);
  Filler(path, pieces, source, may_go_on, report).fill(places);
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
                        {"ema", report.ema},
                        {"refusal", report.refusal}}
      .dump();
}

ShardReport shard_report(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  ShardReport report;
  report.file = json.at("file");
  report.bytes = json.at("bytes");
  report.ema = json.at("ema");
  report.refusal = json.at("refusal");
  report.digest = json.at("digest");
  report.owner = {json.at("tp"), json.at("tp_rank")};
  for (const auto& p : json.at("pieces")) report.pieces.push_back({p.at(0), p.at(1), p.at(2)});
  for (const auto& r : json.at("ranges"))
    report.ranges.push_back({r.at(0), r.at(1), r.at(2), r.at(3)});
  return report;
}

}  // namespace voltapile
