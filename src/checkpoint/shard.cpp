#include "shard.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>

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

// What a core keeps close while a value is looked at and digested twice.
constexpr size_t kDigestedAtOnce = size_t{64} << 10;

// So that the requests in flight are soon followed by others.
constexpr size_t kMostHeldBytes = 2 * ShardFile::kAtOnce * ShardFile::kBlock;

// Goes through a file from its first byte to its last. Its bytes are written, looked at and
// digested beside that.
class Filler {
 public:
  Filler(const std::filesystem::path& path, const std::vector<Piece>& pieces, StateSource& source,
         const std::function<void()>& may_go_on)
      : file_(path), pieces_(pieces), source_(source), may_go_on_(may_go_on) {}

  ShardReport fill(const std::vector<ShardLayout::Place>& places) {
    for (const ShardLayout::Place& place : places) {
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
    return std::move(report_);
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

  void values(const ShardLayout::Place& place) {
    const Piece& piece = pieces_[place.tensor.piece];
    const int64_t begin = at_, size = piece.end - piece.begin;
    for (int64_t done = 0; done < size;) {
      may_go_on_();
      const std::span<const float> taken = take();
      const auto count = static_cast<int64_t>(taken.size());
      VP_CHECK(0 < count && count <= size - done, "{}: {} values are given for {}", place.dataset,
               count, size - done);
      const std::span<const float> kept =
          taken.first(static_cast<size_t>(std::clamp<int64_t>(place.elements - done, 0, count)));
      const int64_t written = file_.write(at_, std::as_bytes(kept));
      newest_ = digests_.add(
          [this, &place, first = piece.begin + done, kept] { look_at(place, first, kept); });
      held_.push_back({taken.size_bytes(), written, newest_});
      held_bytes_ += taken.size_bytes();
      at_ += static_cast<int64_t>(kept.size_bytes());
      done += count;
    }
    newest_ =
        digests_.add([this, &place, begin, end = at_] { close_range(place.dataset, begin, end); });
  }

  std::span<const float> take() {
    while (!held_.empty() && file_.ended(held_.front().written) &&
           digests_.ended(held_.front().digested))
      give_back();
    while (held_bytes_ > kMostHeldBytes) give_back();
    while (true) {
      const std::span<const float> taken = source_.take();
      if (!taken.empty()) return taken;
      VP_CHECK(!held_.empty(), "no values are given, and none are held");
      give_back();
    }
  }

  void give_back() {
    const Held& oldest = held_.front();
    file_.wait(oldest.written);
    digests_.wait(oldest.digested);
    held_bytes_ -= oldest.bytes;
    held_.pop_front();
    source_.give_back();
  }

  void look_at(const ShardLayout::Place& place, int64_t first, std::span<const float> values) {
    while (!values.empty()) {
      const auto some = values.first(std::min(values.size(), kDigestedAtOnce / sizeof(float)));
      refuse_nan(place, first, some);
      add(std::as_bytes(some));
      first += static_cast<int64_t>(some.size());
      values = values.subspan(some.size());
    }
  }

  void refuse_nan(const ShardLayout::Place& place, int64_t first,
                  std::span<const float> values) const {
    int found = 0;  // without a way out, the loop is one of whole vectors
    for (float x : values) found |= std::isnan(x) ? 1 : 0;
    if (found == 0) return;
    const auto nan =
        std::find_if(values.begin(), values.end(), [](float x) { return std::isnan(x); });
    throw Error(ExitCode::failure,
                format("{} is not a number (element {} of the local tensor): training has "
                       "diverged, so this checkpoint is not written; the one before stays",
                       tensor_of(place.dataset), first + (nan - values.begin())));
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
  struct Held {  // a slab, until both have come so far
    size_t bytes = 0;
    int64_t written = 0, digested = 0;
  };
  std::deque<Held> held_;
  size_t held_bytes_ = 0;
  int64_t at_ = 0;
  ShardReport report_;          // its ranges are the queue's
  RunningDigest whole_, part_;  // the queue's
  int64_t newest_ = 0;
  TaskQueue digests_;
};

}  // namespace

std::string tensor_of(const std::string& dataset) {
  if (dataset.empty()) return "HDF5's own structure";
  const size_t slash = dataset.find('/', 1);
  return dataset.substr(1, slash - 1) + " of " + dataset.substr(slash + 1);
}

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

std::vector<StateSource::Tensor> ShardLayout::order() const {
  std::vector<StateSource::Tensor> tensors;
  for (const Place& place : places) tensors.push_back(place.tensor);
  return tensors;
}

ShardLayout lay_out_shard(const std::filesystem::path& folder, int rank, int64_t step,
                          const PieceOwner& owner, const std::vector<Piece>& pieces, bool ema) {
  ShardLayout layout{.file = format("shard_{:05d}.h5", rank), .owner = owner, .ema = ema};
  h5::File file = h5::File::create(folder / layout.file, {ShardFile::kLong, ShardFile::kPage});
  file.set_attribute("step", step);
  file.set_attribute("rank", int64_t{rank});
  {
    std::vector<h5::Group> groups;
    for (const State& state : std::span(kStates).first(ema ? kStates.size() : 3))
      groups.push_back(file.create_group(state.group));
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      const std::string& name = piece.parameter->name;
      const int64_t extent = mapped_extent(
          map_piece(*piece.parameter, owner.tp, owner.tp_rank, piece.begin, piece.end));
      if (extent == 0) continue;
      layout.pieces.push_back({name, piece.begin, piece.begin + extent});
      for (size_t s = 0; s < groups.size(); ++s)
        layout.places.push_back(
            {{i, kStates[s].view},
             format("/{}/{}", kStates[s].group, name),
             groups[s].create_dataset(name, DType::f32, Shape{extent}).place_bytes(),
             extent});
    }
  }
  file.close_unsynced();
  std::sort(layout.places.begin(), layout.places.end(),
            [](const auto& a, const auto& b) { return a.at < b.at; });
  return layout;
}

ShardReport fill_shard(const std::filesystem::path& folder, const ShardLayout& layout,
                       const std::vector<Piece>& pieces, StateSource& source,
                       const std::function<void()>& may_go_on) {
  return Filler(folder / layout.file, pieces, source, may_go_on).fill(layout.places);
}

std::string to_text(const ShardLayout& layout) {
  nlohmann::json pieces = nlohmann::json::array();
  for (const StoredPiece& p : layout.pieces) pieces.push_back({p.name, p.begin, p.end});
  return nlohmann::json{{"file", layout.file},
                        {"tp", layout.owner.tp},
                        {"tp_rank", layout.owner.tp_rank},
                        {"ema", layout.ema},
                        {"pieces", pieces}}
      .dump();
}

ShardLayout shard_layout(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  ShardLayout layout{
      .file = json.at("file"), .owner = {json.at("tp"), json.at("tp_rank")}, .ema = json.at("ema")};
  for (const auto& p : json.at("pieces")) layout.pieces.push_back({p.at(0), p.at(1), p.at(2)});
  return layout;
}

std::string to_text(const ShardReport& report) {
  nlohmann::json ranges = nlohmann::json::array();
  for (const StoredRange& r : report.ranges)
    ranges.push_back({r.dataset, r.begin, r.end, r.digest});
  return nlohmann::json{{"bytes", report.bytes},
                        {"digest", report.digest},
                        {"refusal", report.refusal},
                        {"ranges", ranges}}
      .dump();
}

ShardReport shard_report(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  ShardReport report{
      .refusal = json.at("refusal"), .bytes = json.at("bytes"), .digest = json.at("digest")};
  for (const auto& r : json.at("ranges"))
    report.ranges.push_back({r.at(0), r.at(1), r.at(2), r.at(3)});
  return report;
}

}  // namespace voltapile
