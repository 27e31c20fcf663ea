// Private to report: sets of moments, as sorted intervals that do not touch.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace voltapile {

class Intervals {
 public:
  void add(int64_t begin, int64_t end) {
    if (end > begin) parts_.emplace_back(begin, end);
    tidy_ = false;
  }
  // The moments that are in this set and in [begin, end).
  Intervals within(int64_t begin, int64_t end) const;
  Intervals without(const Intervals& other) const;
  int64_t length() const;
  const std::vector<std::pair<int64_t, int64_t>>& parts() const;

 private:
  mutable std::vector<std::pair<int64_t, int64_t>> parts_;
  mutable bool tidy_ = true;
};

}  // namespace voltapile
