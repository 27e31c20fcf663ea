#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "arithmetic.hpp"
#include "thread_group.hpp"

namespace voltapile {
namespace comm {
namespace {

class ThreadEndpoint final : public Endpoint {
 public:
  ThreadEndpoint(std::shared_ptr<ThreadGroup> group, int rank)
      : Endpoint(rank, group->size()), group_(std::move(group)), inputs_(size_t(size())) {}
  ~ThreadEndpoint() override { group_->leave(rank()); }

  void all_reduce(const TensorView& t, Reduction op) override {
    auto offer = describe("all_reduce", t);
    offer.op = op;
    auto* data = static_cast<std::byte*>(t.data);
    if (t.bytes() <= offer.small.size()) {
      copy_bytes(offer.small.data(), data, t.bytes());
      const auto& offers = group_->meet(*this, std::move(offer));
      for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i] = offers[i].small.data();
      reduce_in_order(inputs_, data, t.elements(), t.dtype, op);
      return;
    }
    const auto& offers = group_->meet(*this, std::move(offer));
    const size_t item = bytes_of(t.dtype);
    const auto piece = [&](int rank) { return piece_of(t.elements(), size(), rank); };
    const Range mine = piece(rank());
    for (size_t i = 0; i < inputs_.size(); ++i)
      inputs_[i] = offers[i].in + static_cast<size_t>(mine.begin) * item;
    // Nobody but this rank touches its piece of any tensor until all have parted.
    reduce_in_order(inputs_, data + static_cast<size_t>(mine.begin) * item, mine.length(), t.dtype,
                    op);
    group_->part(rank());
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      const size_t begin = static_cast<size_t>(piece(peer).begin) * item;
      copy_bytes(data + begin, offers[size_t(peer)].in + begin,
                 static_cast<size_t>(piece(peer).length()) * item);
    }
    group_->part(rank());
  }

  void reduce_scatter(const TensorView& in, const TensorView& out, Reduction op) override {
    auto offer = describe("reduce_scatter", in);
    offer.op = op;
    const auto& offers = group_->meet(*this, std::move(offer));
    const size_t begin = out.bytes() * static_cast<size_t>(rank());
    for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i] = offers[i].in + begin;
    reduce_in_order(inputs_, static_cast<std::byte*>(out.data), out.elements(), out.dtype, op);
    group_->part(rank());
  }

  void all_gather(const TensorView& in, const TensorView& out) override {
    const auto& offers = group_->meet(*this, describe("all_gather", in));
    for (int step = 0; step < size(); ++step) {
      const auto peer = static_cast<size_t>((rank() + step) % size());
      copy_bytes(static_cast<std::byte*>(out.data) + peer * in.bytes(), offers[peer].in,
                 in.bytes());
    }
    group_->part(rank());
  }

  void broadcast(const TensorView& t, int root) override {
    auto offer = describe("broadcast", t);
    offer.root = root;
    const auto& offers = group_->meet(*this, std::move(offer));
    copy_bytes(t.data, offers[size_t(root)].in, t.bytes());
    group_->part(rank());
  }

  void exchange(std::span<const Transfer> transfers) override {
    group_->exchange(*this, transfers);
  }

  void barrier() override { group_->meet(*this, describe("barrier", {})); }

  std::vector<std::string> gather_text(const std::string& text) override {
    auto offer = describe("gather_text", {});
    offer.text = text;
    const auto& offers = group_->meet(*this, std::move(offer));
    std::vector<std::string> texts;
    for (const auto& each : offers) texts.push_back(each.text);
    return texts;
  }

  std::shared_ptr<Endpoint> split(int color, int key) override {
    auto offer = describe("split", {});
    offer.color = color;
    offer.key = key;
    const auto& offers = group_->meet(*this, std::move(offer));
    std::vector<int> members;
    for (int peer = 0; peer < size(); ++peer) {
      if (color >= 0 && offers[size_t(peer)].color == color) members.push_back(peer);
    }
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return offers[size_t(a)].key < offers[size_t(b)].key; });
    const int count = static_cast<int>(members.size());
    if (count > 0 && members[0] == rank()) group_->found(rank(), count);
    group_->part(rank());
    if (count == 0) return nullptr;
    const auto me = std::find(members.begin(), members.end(), rank());
    return std::make_shared<ThreadEndpoint>(group_->founded_by(members[0]),
                                            static_cast<int>(me - members.begin()));
  }

  void abort(const std::string& why) override { group_->world().abort(why); }
  void throw_if_lost() override { group_->throw_if_lost(*this); }

 private:
  static ThreadGroup::Offer describe(const char* call, const TensorView& t) {
    ThreadGroup::Offer offer;
    offer.call = call;
    offer.dtype = t.dtype;
    offer.elements = t.elements();
    offer.in = static_cast<const std::byte*>(t.data);
    return offer;
  }

  const std::shared_ptr<ThreadGroup> group_;
  std::vector<const std::byte*> inputs_;
};

std::string what_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) { return error.what(); } catch (...) {
    return "an exception of unknown type";
  }
}

bool is_echo(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const PeerFailure&) { return true; } catch (...) {
    return false;
  }
}

}  // namespace
}  // namespace comm

void spawn_ranks(int n, const std::function<void(std::unique_ptr<Communicator>)>& f) {
  VP_CHECK(n >= 1, "spawn_ranks needs a rank, not {}", n);
  const auto world = std::make_shared<comm::ThreadWorld>();
  const auto group = std::make_shared<comm::ThreadGroup>(world, n);
  world->add(group);
  std::mutex mutex;  // guards `failures`
  std::vector<std::exception_ptr> failures;
  const auto run = [&](int rank) {
    try {
      f(comm::make_communicator(std::make_shared<comm::ThreadEndpoint>(group, rank)));
    } catch (...) {
      const auto failure = std::current_exception();
      {
        const std::lock_guard lock(mutex);
        failures.push_back(failure);
      }
      world->abort(format("rank {} of {} failed: {}", rank, n, comm::what_of(failure)));
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) threads.emplace_back(run, rank);
  for (auto& thread : threads) thread.join();
  if (failures.empty()) return;
  // An echo may be caught before its cause, whose rank had more to unwind.
  const auto cause = std::find_if_not(failures.begin(), failures.end(), comm::is_echo);
  std::rethrow_exception(cause != failures.end() ? *cause : failures.front());
}

}  // namespace voltapile
