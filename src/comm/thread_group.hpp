// Ranks as threads of one process: where the ranks of one communicator meet.
#pragma once
#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "endpoint.hpp"

namespace voltapile::comm {

class ThreadGroup;

// All communicators that come from one spawn_ranks fail together.
class ThreadWorld {
 public:
  void abort(const std::string& why);  // the first cause stays
  bool lost() const { return lost_.load(); }
  std::string why() const;
  void add(const std::shared_ptr<ThreadGroup>& group);

 private:
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::string why_;
  std::vector<std::weak_ptr<ThreadGroup>> groups_;
};

class ThreadGroup {
 public:
  ThreadGroup(std::shared_ptr<ThreadWorld> world, int size);
  int size() const { return size_; }
  ThreadWorld& world() { return *world_; }

  // What a rank brings to a meeting. `in` may be read by the others until the meeting has parted.
  struct Offer {
    const char* call = "";
    DType dtype = DType::u8;
    Reduction op = Reduction::sum;
    int root = 0;
    int64_t elements = 0;
    const std::byte* in = nullptr;
    std::array<std::byte, 256> small{};  // a small tensor itself: nobody need wait for its readers
    std::string text;
    int color = 0, key = 0;
  };
  using Offers = std::vector<Offer>;

  // Blocks until every rank has made the same call; PeerFailure or Error when one never will. The
  // offers stay until the rank's next but one meeting.
  const Offers& meet(Endpoint& end, Offer offer);
  // Blocks until every rank of the last meeting is here. Never fails: between meet and part no rank
  // can stop, so no buffer is freed while somebody reads it.
  void part(int rank);

  // Receives copy from the sender's memory; sends wait until that is done.
  void exchange(Endpoint& end, std::span<const Transfer> transfers);

  // A new group of `size` ranks of this one, for those who know its founder after the next part().
  void found(int founder, int size);
  std::shared_ptr<ThreadGroup> founded_by(int founder) const;

  void leave(int rank);  // this rank will make no more calls
  void wake();           // all look again whether the world is lost
  void throw_if_lost(const Endpoint& end) const;

 private:
  struct Parcel {
    const std::byte* data;
    size_t bytes;
    DType dtype;
    enum class State { waiting, copying, delivered } state = State::waiting;
  };
  struct Seat {
    std::condition_variable turn;
    bool left = false;
    std::shared_ptr<ThreadGroup> founded;
  };
  struct Pending {
    Transfer transfer;
    Parcel* parcel;  // of a send
  };
  std::deque<Parcel*>& mail(int from, int to) {
    return mail_[static_cast<size_t>(from) * seats_.size() + static_cast<size_t>(to)];
  }
  bool deliver_one(Endpoint& end, std::vector<Pending>& receives,
                   std::unique_lock<std::mutex>& lock);
  void check_peers(const Endpoint& end, std::span<const Pending> waiting) const;
  void check_alike(const Endpoint& end, const Offers& offers) const;
  void wake_all();

  const std::shared_ptr<ThreadWorld> world_;
  const int size_;
  mutable std::mutex mutex_;
  std::vector<Seat> seats_;
  std::array<Offers, 2> offers_;  // by parity of the meeting, so that the next may begin
  uint64_t meetings_ = 0, partings_ = 0;
  int met_ = 0, parted_ = 0;
  std::vector<std::deque<Parcel*>> mail_;  // [from][to]
};

}  // namespace voltapile::comm
