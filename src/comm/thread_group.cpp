#include "thread_group.hpp"

#include <algorithm>
#include <utility>

#include "arithmetic.hpp"

namespace voltapile::comm {

void ThreadWorld::abort(const std::string& why) {
  std::vector<std::weak_ptr<ThreadGroup>> groups;
  {
    const std::lock_guard lock(mutex_);
    if (lost_.load()) return;
    why_ = why;
    lost_.store(true);
    groups = groups_;
  }
  for (const auto& weak : groups) {
    if (const auto group = weak.lock()) group->wake();
  }
}

std::string ThreadWorld::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

void ThreadWorld::add(const std::shared_ptr<ThreadGroup>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
  groups_.push_back(group);
}

ThreadGroup::ThreadGroup(std::shared_ptr<ThreadWorld> world, int size)
    : world_(std::move(world)),
      size_(size),
      seats_(static_cast<size_t>(size)),
      offers_{Offers(static_cast<size_t>(size)), Offers(static_cast<size_t>(size))},
      mail_(static_cast<size_t>(size) * static_cast<size_t>(size)) {}

void ThreadGroup::throw_if_lost(const Endpoint& end) const {
  if (world_->lost()) throw PeerFailure(format("{} was given up: {}", end.label(), world_->why()));
}

void ThreadGroup::wake_all() {
  for (Seat& seat : seats_) seat.turn.notify_all();
}

void ThreadGroup::wake() {
  const std::lock_guard lock(mutex_);
  wake_all();
}

void ThreadGroup::found(int founder, int size) {
  auto group = std::make_shared<ThreadGroup>(world_, size);
  world_->add(group);
  const std::lock_guard lock(mutex_);
  seats_[static_cast<size_t>(founder)].founded = std::move(group);
}

std::shared_ptr<ThreadGroup> ThreadGroup::founded_by(int founder) const {
  const std::lock_guard lock(mutex_);
  return seats_[static_cast<size_t>(founder)].founded;
}

void ThreadGroup::leave(int rank) {
  const std::lock_guard lock(mutex_);
  seats_[static_cast<size_t>(rank)].left = true;
  wake_all();
}

const ThreadGroup::Offers& ThreadGroup::meet(Endpoint& end, Offer offer) {
  std::unique_lock lock(mutex_);
  throw_if_lost(end);
  const uint64_t meeting = meetings_;
  Offers& offers = offers_[meeting % 2];
  offers[static_cast<size_t>(end.rank())] = std::move(offer);
  if (++met_ == size_) {
    try {
      check_alike(end, offers);
    } catch (const Error& error) {
      lock.unlock();  // abort() wakes this group too
      world_->abort(error.what());
      throw;
    }
    met_ = 0;
    ++meetings_;
    wake_all();
    return offers;
  }
  Seat& seat = seats_[static_cast<size_t>(end.rank())];
  const auto somebody_left = [&] {
    return std::find_if(seats_.begin(), seats_.end(), [](const Seat& s) { return s.left; });
  };
  seat.turn.wait(lock, [&] {
    return meetings_ != meeting || world_->lost() || somebody_left() != seats_.end();
  });
  if (meetings_ != meeting) return offers;
  --met_;
  throw_if_lost(end);
  throw Error(ExitCode::failure,
              format("{}: rank {} of this communicator has ended without this call", end.label(),
                     somebody_left() - seats_.begin()));
}

void ThreadGroup::check_alike(const Endpoint& end, const Offers& offers) const {
  const auto text = [](const Offer& offer) {
    return format("{} of {} x {} (op {}, root {})", offer.call, offer.elements,
                  name_of(offer.dtype), static_cast<int>(offer.op), offer.root);
  };
  for (size_t i = 1; i < offers.size(); ++i) {
    const Offer &a = offers[0], &b = offers[i];
    VP_CHECK(std::string_view(a.call) == b.call && a.dtype == b.dtype && a.op == b.op &&
                 a.root == b.root && a.elements == b.elements,
             "{}: rank 0 of this communicator calls {}, rank {} calls {}", end.label(), text(a), i,
             text(b));
  }
}

void ThreadGroup::part(int rank) {
  std::unique_lock lock(mutex_);
  const uint64_t parting = partings_;
  if (++parted_ == size_) {
    parted_ = 0;
    ++partings_;
    wake_all();
    return;
  }
  seats_[static_cast<size_t>(rank)].turn.wait(lock, [&] { return partings_ != parting; });
}

// Copies the first parcel that has come for one of `receives`, and takes it off the list.
bool ThreadGroup::deliver_one(Endpoint& end, std::vector<Pending>& receives,
                              std::unique_lock<std::mutex>& lock) {
  const auto ready = std::find_if(receives.begin(), receives.end(), [&](const Pending& pending) {
    return !mail(pending.transfer.peer, end.rank()).empty();
  });
  if (ready == receives.end()) return false;
  const Transfer transfer = ready->transfer;
  auto& box = mail(transfer.peer, end.rank());
  Parcel* parcel = box.front();
  VP_CHECK(parcel->bytes == transfer.tensor.bytes() && parcel->dtype == transfer.tensor.dtype,
           "{}: rank {} of this communicator sends {} bytes of {}, {} bytes of {} are expected",
           end.label(), transfer.peer, parcel->bytes, name_of(parcel->dtype),
           transfer.tensor.bytes(), name_of(transfer.tensor.dtype));
  box.pop_front();
  receives.erase(ready);
  parcel->state = Parcel::State::copying;
  lock.unlock();
  copy_bytes(transfer.tensor.data, parcel->data, parcel->bytes);
  lock.lock();
  parcel->state = Parcel::State::delivered;
  seats_[static_cast<size_t>(transfer.peer)].turn.notify_all();
  return true;
}

void ThreadGroup::check_peers(const Endpoint& end, std::span<const Pending> waiting) const {
  for (const auto& [transfer, parcel] : waiting) {
    const bool under_way = parcel != nullptr && parcel->state != Parcel::State::waiting;
    if (under_way || !seats_[static_cast<size_t>(transfer.peer)].left) continue;
    throw Error(ExitCode::failure,
                format("{}: rank {} of this communicator has ended without its part", end.label(),
                       transfer.peer));
  }
}

void ThreadGroup::exchange(Endpoint& end, std::span<const Transfer> transfers) {
  std::deque<Parcel> parcels;
  std::vector<Pending> sends, receives;
  std::unique_lock lock(mutex_);
  throw_if_lost(end);
  for (const Transfer& transfer : transfers) {
    if (transfer.direction == Direction::receive) {
      receives.push_back({transfer, nullptr});
      continue;
    }
    parcels.push_back({static_cast<const std::byte*>(transfer.tensor.data), transfer.tensor.bytes(),
                       transfer.tensor.dtype});
    sends.push_back({transfer, &parcels.back()});
    mail(end.rank(), transfer.peer).push_back(&parcels.back());
    seats_[static_cast<size_t>(transfer.peer)].turn.notify_all();
  }
  const auto delivered = [](const Pending& pending) {
    return pending.parcel->state == Parcel::State::delivered;
  };
  // Nobody else may touch the parcels, or the memory behind them, once this call has ended.
  const auto withdraw = [&] {
    for (Pending& send : sends) {
      if (send.parcel->state == Parcel::State::waiting)
        std::erase(mail(end.rank(), send.transfer.peer), send.parcel);
    }
    seats_[static_cast<size_t>(end.rank())].turn.wait(lock, [&] {
      return std::none_of(parcels.begin(), parcels.end(), [](const Parcel& parcel) {
        return parcel.state == Parcel::State::copying;
      });
    });
  };
  try {
    for (;;) {
      while (deliver_one(end, receives, lock)) {}
      std::erase_if(sends, delivered);
      if (sends.empty() && receives.empty()) return;
      throw_if_lost(end);
      check_peers(end, sends);
      check_peers(end, receives);
      seats_[static_cast<size_t>(end.rank())].turn.wait(lock);
    }
  } catch (const PeerFailure&) {
    withdraw();
    throw;
  } catch (const Error& error) {
    withdraw();
    lock.unlock();
    world_->abort(error.what());
    throw;
  }
}

}  // namespace voltapile::comm
