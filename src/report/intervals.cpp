#include "intervals.hpp"

namespace voltapile {

const std::vector<std::pair<int64_t, int64_t>>& Intervals::parts() const {
  if (tidy_) return parts_;
  std::sort(parts_.begin(), parts_.end());
  size_t kept = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (kept > 0 && parts_[i].first <= parts_[kept - 1].second)
      parts_[kept - 1].second = std::max(parts_[kept - 1].second, parts_[i].second);
    else parts_[kept++] = parts_[i];
  }
  parts_.resize(kept);
  tidy_ = true;
  return parts_;
}

Intervals Intervals::within(int64_t begin, int64_t end) const {
  Intervals result;
  for (const auto& [from, to] : parts()) result.add(std::max(from, begin), std::min(to, end));
  return result;
}

Intervals Intervals::without(const Intervals& other) const {
  Intervals result;
  const auto& holes = other.parts();
  size_t hole = 0;
  for (auto [from, to] : parts()) {
    while (hole < holes.size() && holes[hole].second <= from) ++hole;
    for (size_t h = hole; h < holes.size() && holes[h].first < to; ++h) {
      result.add(from, holes[h].first);
      from = std::max(from, holes[h].second);
    }
    result.add(from, to);
  }
  return result;
}

int64_t Intervals::length() const {
  int64_t sum = 0;
  for (const auto& [from, to] : parts()) sum += to - from;
  return sum;
}

}  // namespace voltapile
