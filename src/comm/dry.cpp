#include "voltapile/comm/dry.hpp"

#include <algorithm>

#include "checks.hpp"

namespace voltapile {
namespace {

class DryCommunicator final : public Communicator {
 public:
  DryCommunicator(int rank, int size) : rank_(rank), size_(size) {
    place = format("rank {} of {}", rank, size);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const TrafficCounts& counts() const { return counts_; }

  std::unique_ptr<Communicator> split(int color, int key) override {
    if (color < 0) return nullptr;
    VP_CHECK(size_ == 1,
             "'{}' is dry and cannot ask {} other ranks where they go (color {}, key {}): use "
             "split_by",
             name, size_ - 1, color, key);
    return make_dry_communicator(0, 1);
  }

  std::unique_ptr<Communicator> split_by(const std::function<Seat(int rank)>& seat_of) override {
    const Seat mine = seat_of(rank_);
    if (mine.color < 0) return nullptr;
    int before = 0, members = 0;
    for (int peer = 0; peer < size_; ++peer) {
      const Seat seat = seat_of(peer);
      if (seat.color != mine.color) continue;
      ++members;
      if (seat.key < mine.key || (seat.key == mine.key && peer < rank_)) ++before;
    }
    auto part = make_dry_communicator(before, members);
    part->name = format("{}/{}", name, mine.color);
    part->place = place;
    return part;
  }

  void all_reduce(TensorView t, Reduction, Stream&) override {
    comm::check_tensor(*this, "all_reduce", t);
    count(Traffic::all_reduce, t);
  }
  void reduce_scatter(TensorView in, TensorView out, Reduction, Stream&) override {
    comm::check_pieces(*this, "reduce_scatter", in, out);
    count(Traffic::reduce_scatter, in);
  }
  void all_gather(TensorView in, TensorView out, Stream&) override {
    comm::check_pieces(*this, "all_gather", out, in);
    count(Traffic::all_gather, out);
  }
  void broadcast(TensorView t, int root, Stream&) override {
    comm::check_tensor(*this, "broadcast", t);
    comm::check_root(*this, root);
    count(Traffic::broadcast, t);
  }
  void exchange(std::span<const Transfer> transfers, Stream&) override {
    comm::check_transfers(*this, transfers);
    for (const Transfer& transfer : transfers) {
      if (transfer.peer == rank_) continue;
      count(transfer.direction == Direction::send ? Traffic::send : Traffic::receive,
            transfer.tensor);
    }
  }
  void barrier() override {}
  // Others would say the same: there is nobody to ask.
  std::vector<std::string> gather_text(const std::string& text) override {
    return std::vector<std::string>(static_cast<size_t>(size_), text);
  }
  void abort(const std::string&) override {}

 private:
  void count(Traffic traffic, const TensorView& t) {
    if (size_ == 1) return;
    counts_[traffic].calls += 1;
    counts_[traffic].bytes += static_cast<int64_t>(t.bytes());
  }

  const int rank_, size_;
  TrafficCounts counts_;
};

}  // namespace

std::string_view name_of(Traffic traffic) {
  switch (traffic) {
    case Traffic::all_reduce: return "all_reduce";
    case Traffic::reduce_scatter: return "reduce_scatter";
    case Traffic::all_gather: return "all_gather";
    case Traffic::broadcast: return "broadcast";
    case Traffic::send: return "send";
    case Traffic::receive: return "receive";
  }
  return "?";
}

std::unique_ptr<Communicator> make_dry_communicator(int rank, int size) {
  VP_CHECK(0 <= rank && rank < size, "rank {} of {}", rank, size);
  return std::make_unique<DryCommunicator>(rank, size);
}

const TrafficCounts& traffic_of(const Communicator& dry) {
  const auto* counter = dynamic_cast<const DryCommunicator*>(&dry);
  VP_CHECK(counter != nullptr, "'{}' is not a dry communicator: it counts nothing", dry.name);
  return counter->counts();
}

}  // namespace voltapile
