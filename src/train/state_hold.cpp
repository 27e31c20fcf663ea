#include "voltapile/train/state_hold.hpp"

#include <utility>

#include "voltapile/base/clock.hpp"
#include "voltapile/base/error.hpp"

namespace voltapile {

void StateHold::begin(const std::vector<int>& chunks) {
  const std::lock_guard lock(mutex_);
  VP_CHECK(held_.empty(), "the state of {} chunks is held already", held_.size());
  held_.insert(chunks.begin(), chunks.end());
  waited_ = 0;
}

void StateHold::release(int chunk) {
  const std::lock_guard lock(mutex_);
  held_.erase(chunk);
  released_.notify_all();
}

void StateHold::release_all() {
  const std::lock_guard lock(mutex_);
  held_.clear();
  released_.notify_all();
}

void StateHold::wait(int chunk) {
  std::unique_lock lock(mutex_);
  if (!held_.contains(chunk)) return;
  awaited_ = chunk;
  waits_since_ = now_seconds();
  released_.wait(lock, [&] { return !held_.contains(chunk); });
  waited_ += now_seconds() - waits_since_;
  awaited_.reset();
}

std::optional<int> StateHold::awaited() const {
  const std::lock_guard lock(mutex_);
  return awaited_;
}

double StateHold::waited_seconds() const {
  const std::lock_guard lock(mutex_);
  return waited_ + (awaited_ ? now_seconds() - waits_since_ : 0);
}

}  // namespace voltapile
